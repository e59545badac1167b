"""Metrics on their own: what Prometheus' parser makes of them, sums over actors, buckets, labels with a bound."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from cluster.declaration_log import verdict_fields
from cluster.metrics import LATENCY_BUCKETS, Metrics, bare_reason

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

COLLECTION = {"bytes": 10, "budget": 100, "queued": 3, "observations": 7}
STATS: dict[str, Any] = {
    "collection-1": {
        "opened": 4,
        "closed": 2,
        "slot_used": True,
        "prefetched": {"probes": 5},
        "collections": [COLLECTION] * 2,
        "fallback_keys": 20,
    },
    "collection-2": {
        "opened": 1,
        "closed": 1,
        "slot_used": False,
        "prefetched": {"probes": 6},
        "collections": [],
        "fallback_keys": 300,
    },
    "fetch-3": {"keys": {"validation": 1, "speculation": 2}},
    "fetch-4": {"error": "ActorDiedError"},
    "script-5": {"inputs": {"validation": 30, "speculation": 40}},
    "template-6": {"fallback_keys": 9},
    "chainstate-7": {"cache_bytes": 11},
    "mempool-8": {"transactions": 12, "bytes": 13, "bound": 14, "unsettled": 15, "scripts_known": 16},
    "supervisor": {"replaced": {"fetch": 2}},
}


def samples(metrics: Metrics) -> Samples:
    text = metrics.exposition().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_actors_count_is_added_up() -> None:
    metrics = Metrics()
    metrics.node.take(STATS, tip_height=125)
    seen = samples(metrics)
    expected = {
        ("txcollection_tip_height", ()): 125,
        ("txcollection_collections_open", ()): 2,
        ("txcollection_slots_used", ()): 1,
        ("txcollection_collections_bytes", ()): 20,
        ("txcollection_collections_budget_bytes", ()): 200,
        ("txcollection_prefetch_queue_length", ()): 6,
        ("txcollection_observations", ()): 14,
        ("txcollection_collections_total", (("what", "opened"),)): 5,
        ("txcollection_prefetched_total", (("what", "probes"),)): 11,
        ("txcollection_workers", (("kind", "fetch"),)): 1,
        ("txcollection_workers", (("kind", "collection"),)): 2,
        ("txcollection_workers_replaced_total", (("kind", "fetch"),)): 2,
        ("txcollection_keys_read_total", (("group", "speculation"),)): 2,
        ("txcollection_inputs_verified_total", (("group", "validation"),)): 30,
        ("txcollection_fallback_keys_total", ()): 329,  # by those who give verdicts
        ("txcollection_coins_cache_bytes", ()): 11,
        ("txcollection_mempool_transactions", ()): 12,
        ("txcollection_mempool_unsettled", ()): 15,
    }
    assert {key: seen[key] for key in expected} == expected


def test_node_that_does_not_answer_leaves_no_gauges_of_actors() -> None:
    metrics = Metrics()
    metrics.node.take({}, healthy=0)
    seen = {name for name, _ in samples(metrics)}
    assert "txcollection_healthy" in seen
    assert "txcollection_collections_open" not in seen


def test_verdict_is_counted_with_the_times_of_its_phases() -> None:
    metrics = Metrics()
    timings = {"check": 4.0, "template": 4.5, "collection": 6.0, "coins_read": 3, "scripts_run": 2}
    metrics.verdict("declaration", verdict_fields(("valid", None, "", None, "", None, timings)))
    seen = samples(metrics)
    labels = (("kind", "valid"), ("on", "declaration"), ("reason", ""))
    assert seen["txcollection_verdicts_total", labels] == 1
    assert seen["txcollection_late_work_total", (("what", "coins"),)] == 3
    assert seen["txcollection_phase_seconds_sum", (("phase", "collection"),)] == 0.006
    assert seen["txcollection_phase_seconds_bucket", (("le", "0.004"), ("phase", "check"))] == 1
    assert seen["txcollection_phase_seconds_bucket", (("le", "0.003"), ("phase", "check"))] == 0


def test_histogram_for_the_page_counts_each_bucket_alone() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.006, 0.0065, 99):
        metrics.observe("verdict", seconds)
    shown = metrics.latencies()["verdict"]
    assert len(shown["counts"]) == len(LATENCY_BUCKETS) + 1
    assert {at: n for at, n in enumerate(shown["counts"]) if n} == {
        0: 1,
        LATENCY_BUCKETS.index(0.007): 2,
        len(LATENCY_BUCKETS): 1,
    }
    assert round(shown["sum"], 4) == 99.013


def test_reasons_have_a_bound() -> None:
    assert bare_reason("bad-version(0x00000001)") == "bad-version"
    assert bare_reason("block-script-verify-flag-failed (why)") == "block-script-verify-flag-failed"
    assert bare_reason(None) == ""
