"""What a gateway counts and measures, for Prometheus and for the status page, in a registry of its own.

Times are observed as they happen; what the node's actors count is taken from their `stats` when somebody looks.
"""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["LATENCY_BUCKETS", "Metrics", "NodeFacts", "bare_reason"]

#: Upper bounds in seconds, close to each other around the ten milliseconds that a verdict may take.
LATENCY_BUCKETS = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
)  # fmt: skip

#: Phases of `txcollection_phase_seconds`, as shown on the status page.
PHASES = {
    "verdict": "maketemplate, from request to answer",
    "collection": "of that in the collection's process",
    "template": "of that with the judge",
    "check": "of that the check itself",
    "collect": "collecttxs",
    "supply": "addmissingtxs",
    "proposal": "getblocktemplate with a proposal",
}


def bare_reason(reason: str | None) -> str:
    """A reason without what is in brackets, so that the number of label values has a bound."""
    return (reason or "").split("(")[0].strip()


class Metrics:
    """Counters and histograms of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.node = NodeFacts()
        self.registry.register(self.node)
        self.phases = Histogram(
            "txcollection_phase_seconds",
            "Time of a call, or of a part of one",
            ["phase"],
            registry=self.registry,
            buckets=LATENCY_BUCKETS,
        )
        self.calls = Counter(
            "txcollection_rpc_calls", "RPC calls by method and outcome", ["method", "outcome"], registry=self.registry
        )
        self.errors = Counter("txcollection_errors", "Errors answered, by type", ["type"], registry=self.registry)
        self.refused = Counter(
            "txcollection_http_refused", "Requests refused before they were read", ["why"], registry=self.registry
        )
        self.verdicts = Counter(
            "txcollection_verdicts", "Verdicts by what was asked", ["on", "kind", "reason"], registry=self.registry
        )
        self.late = Counter(
            "txcollection_late_work",
            "What a check had still to do because it was not prefetched",
            ["what"],
            registry=self.registry,
        )
        self.received = Counter("txcollection_received_bytes", "Bytes of request bodies", registry=self.registry)
        self.sent = Counter("txcollection_sent_bytes", "Bytes of answers", registry=self.registry)
        for phase in PHASES:
            self.phases.labels(phase)
        for what in ("coins", "scripts"):
            self.late.labels(what)

    def observe(self, phase: str, seconds: float) -> None:
        """One measured time."""
        self.phases.labels(phase).observe(seconds)

    def verdict(self, on: str, fields: dict[str, Any]) -> None:
        """A verdict on a `declaration` or a `proposal`, with the fields of `declaration_log.verdict_fields`."""
        self.verdicts.labels(on, fields["verdict"], bare_reason(fields["reason"])).inc()
        self.late.labels("coins").inc(fields.get("coins_read", 0))
        self.late.labels("scripts").inc(fields.get("scripts_run", 0))
        if on == "declaration":
            for phase in ("collection", "template", "check"):
                if phase in fields["ms"]:
                    self.observe(phase, fields["ms"][phase] / 1000)

    def total_calls(self) -> int:
        """RPC calls since the start."""
        samples = [s for metric in self.calls.collect() for s in metric.samples]
        return int(sum(s.value for s in samples if s.name.endswith("_total")))

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)

    def latencies(self) -> dict[str, Any]:
        """The histograms for the status page: by phase, counts in each bucket (not added up), the sum in seconds."""
        shown: dict[str, Any] = {}
        for metric in self.phases.collect():
            for sample in metric.samples:
                phase = sample.labels["phase"]
                entry = shown.setdefault(phase, {"about": PHASES.get(phase, phase), "counts": [], "sum": 0.0})
                if sample.name.endswith("_bucket"):
                    entry["counts"].append(sample.value)
                elif sample.name.endswith("_sum"):
                    entry["sum"] = sample.value
        for entry in shown.values():
            added = entry["counts"]
            entry["counts"] = [int(b - a) for a, b in zip([0, *added], added, strict=False)]
        return shown

    def verdict_counts(self) -> list[dict[str, Any]]:
        """How often which verdict, most frequent first."""
        samples = [s for metric in self.verdicts.collect() for s in metric.samples if s.name.endswith("_total")]
        rows = [{**sample.labels, "count": int(sample.value)} for sample in samples if sample.value]
        return sorted(rows, key=lambda row: -row["count"])


def _of_kind(stats: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Counters of the actors of a kind, by name, without those that did not answer."""
    return {
        name: counters
        for name, counters in stats.items()
        if name.rpartition("-")[0] == kind and "error" not in counters
    }


class NodeFacts:
    """The node's own counters as metrics, as of the last `take`."""

    def __init__(self) -> None:
        self._stats: dict[str, Any] = {}
        self._extra: dict[str, float] = {}

    def take(self, stats: dict[str, Any], **extra: float) -> None:
        """Every actor's counters, and numbers (`tip_height`, ...) that become gauges of that name."""
        self._stats = stats
        self._extra = extra

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        for name, value in self._extra.items():
            yield GaugeMetricFamily(f"txcollection_{name}", name.replace("_", " "), value)
        if not self._stats:
            return
        yield from self._collections()
        yield from self._workers()
        yield from self._mempool()

    def _collections(self) -> Iterable[Metric]:
        actors = _of_kind(self._stats, "collection").values()
        open_ = [collection for counters in actors for collection in counters["collections"]]
        gauges = {
            "collections_open": ("Open collections", len(open_)),
            "slots_used": ("Collections that prefetch", sum(counters["slot_used"] for counters in actors)),
            "collections_bytes": ("Bytes of queues and observations", sum(c["bytes"] for c in open_)),
            "collections_budget_bytes": ("Bytes that they may take", sum(c["budget"] for c in open_)),
            "prefetch_queue_length": ("Outpoints that wait to be read ahead", sum(c["queued"] for c in open_)),
            "observations": ("Coins and absences that are held", sum(c["observations"] for c in open_)),
        }
        for name, (about, value) in gauges.items():
            yield GaugeMetricFamily(f"txcollection_{name}", about, value)
        made = CounterMetricFamily("txcollection_collections", "Collections opened and closed", labels=["what"])
        for what in ("opened", "closed"):
            made.add_metric([what], sum(counters[what] for counters in actors))
        yield made
        prefetched = CounterMetricFamily("txcollection_prefetched", "What was read or verified ahead", labels=["what"])
        for what in ("from_workers", "cache_hits", "probes", "scripts"):
            prefetched.add_metric([what], sum(counters.get("prefetched", {}).get(what, 0) for counters in actors))
        yield prefetched

    def _workers(self) -> Iterable[Metric]:
        running = GaugeMetricFamily("txcollection_workers", "Actors by kind that answer", labels=["kind"])
        kinds = {name.rpartition("-")[0] for name in self._stats if "-" in name}
        for kind in sorted(kinds):
            running.add_metric([kind], len(_of_kind(self._stats, kind)))
        yield running
        supervisor = self._stats.get("supervisor", {})
        replaced = CounterMetricFamily("txcollection_workers_replaced", "Actors that died", labels=["kind"])
        for kind, count in supervisor.get("replaced", {}).items():
            replaced.add_metric([kind], count)
        yield replaced
        keys = CounterMetricFamily("txcollection_keys_read", "Outpoints read by fetch workers", labels=["group"])
        scripts = CounterMetricFamily("txcollection_inputs_verified", "Inputs run by script workers", labels=["group"])
        for family, kind, counter in ((keys, "fetch", "keys"), (scripts, "script", "inputs")):
            for group in ("validation", "speculation"):
                total = sum(c[counter][group] for c in _of_kind(self._stats, kind).values())
                family.add_metric([group], total)
            yield family
        judges = [c for kind in ("template", "collection") for c in _of_kind(self._stats, kind).values()]
        read = sum(counters["fallback_keys"] for counters in judges)
        yield CounterMetricFamily("txcollection_fallback_keys", "Outpoints that checks read", read)
        for counters in _of_kind(self._stats, "chainstate").values():
            yield GaugeMetricFamily(
                "txcollection_coins_cache_bytes", "Bytes of the coins cache", counters["cache_bytes"]
            )

    def _mempool(self) -> Iterable[Metric]:
        for counters in _of_kind(self._stats, "mempool").values():
            gauges = {
                "mempool_transactions": ("Transactions in the mempool", "transactions"),
                "mempool_bytes": ("Bytes that they take, packed", "bytes"),
                "mempool_bound_bytes": ("Bytes that they may take", "bound"),
                "mempool_unsettled": ("Transactions that wait to be looked at", "unsettled"),
                "scripts_known": ("Transactions whose scripts are known to pass", "scripts_known"),
            }
            for name, (about, key) in gauges.items():
                yield GaugeMetricFamily(f"txcollection_{name}", about, counters[key])
