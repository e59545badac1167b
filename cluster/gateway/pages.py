"""Pages for operators: the status page with its figures, `/health` for load balancers, `/metrics` for Prometheus.

They read and change nothing, and one look at the node serves everybody who asks within half a second.
"""

import base64
import hashlib
import json
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from cluster.gateway.admission import Admission
from cluster.gateway.calls import House
from cluster.health import NodeLook, judge, tip_age
from cluster.metrics import LATENCY_BUCKETS

__all__ = ["PAGES", "Pages"]

PAGES = ("/", "/health", "/metrics", "/status.json")
STATUS_PAGE = Path(__file__).resolve().parents[1] / "status_page" / "index.html"
MAX_COLLECTIONS_SHOWN = 50
PLAIN = {"Server": "txcollection", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def content_policy(page: str) -> str:
    """What a browser may run and load for this page: its own script and style, and figures from here. Nothing else."""

    def hashes(tag: str) -> str:
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in bodies)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Pages:
    """Answers GET requests."""

    def __init__(self, house: House, admission: Admission):
        self._house = house
        self._admission = admission
        self._page = STATUS_PAGE.read_text(encoding="utf-8")
        self._policy = content_policy(self._page)
        self._version = _version()

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """One of `PAGES`."""
        if request.path == "/":
            headers = {**PLAIN, "Content-Security-Policy": self._policy, "Referrer-Policy": "no-referrer"}
            return web.Response(text=self._page, content_type="text/html", headers=headers)
        look = await self._house.facts.look()
        if request.path == "/health":
            return self._health(look)
        if request.path == "/metrics":
            return self._metrics(look)
        return _json(self.status(look))

    def _health(self, look: NodeLook) -> web.Response:
        health = judge(look, self._house.settings)
        answer = {**health.to_dict(), "tip": self._tip(look), "following": look.follow is not None}
        return _json(answer, 200 if health.ok else 503)

    def _metrics(self, look: NodeLook) -> web.Response:
        sessions, admission = self._house.sessions, self._admission
        facts: dict[str, float] = {
            "healthy": judge(look, self._house.settings).ok,
            "uptime_seconds": time.time() - self._house.started,
            "requests_under_way": admission.used,
            "requests_allowed": admission.slots,
            "request_bytes_under_way": admission.bytes,
            "sessions": len(sessions),
            "calls_pending": sessions.pending,
            "slots": self._house.settings["collection_actors"],
        }
        if look.tip is not None:
            facts["tip_height"] = look.tip.height
            age = tip_age(look, self._house.settings)
            if age is not None:
                facts["tip_age_seconds"] = age
        if look.follow is not None:
            facts["followed_height"] = look.follow.get("node_height", -1)
        self._house.metrics.node.take(look.stats or {}, **facts)
        headers = {**PLAIN, "Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=self._house.metrics.exposition(), headers=headers)

    def _tip(self, look: NodeLook) -> dict[str, Any] | None:
        if look.tip is None:
            return None
        age = tip_age(look, self._house.settings)
        return {"hash": look.tip.hash, "height": look.tip.height, "time": look.tip.time, "age": age}

    def status(self, look: NodeLook) -> dict[str, Any]:
        """Everything that the status page shows; times in seconds, sizes in bytes."""
        house, stats = self._house, look.stats or {}
        actors = [counters for name, counters in stats.items() if name.startswith("collection-")]
        collections = [c for counters in actors for c in counters.get("collections", [])]
        chainstate = _first(stats, "chainstate")
        mempool = _first(stats, "mempool")
        supervisor = stats.get("supervisor", {})
        return {
            "version": self._version,
            "time": look.taken,
            "uptime": look.taken - house.started,
            "store": str(house.store),
            "network": chainstate.get("network"),
            "health": judge(look, house.settings).to_dict(),
            "tip": self._tip(look),
            "tip_old_s": house.settings["tip_old_s"],
            "follow": look.follow,
            "slots": {
                "used": sum(bool(counters.get("slot_used")) for counters in actors),
                "total": house.settings["collection_actors"],
            },
            "collections": [_collection(c) for c in collections[:MAX_COLLECTIONS_SHOWN]],
            "collections_open": len(collections),
            "latency": {"bounds": list(LATENCY_BUCKETS), "phases": house.metrics.latencies()},
            "verdicts": house.metrics.verdict_counts(),
            "workers": [_worker(name, counters) for name, counters in stats.items() if name != "supervisor"],
            "replaced": supervisor.get("replaced", {}),
            "spares": supervisor.get("spares", {}),
            "mempool": {key: mempool.get(key) for key in ("transactions", "bytes", "bound", "unsettled", "evicted")},
            "requests": {
                "under_way": self._admission.used,
                "allowed": self._admission.slots,
                "sessions": len(house.sessions),
                "pending": house.sessions.pending,
            },
        }


def _first(stats: dict[str, Any], kind: str) -> dict[str, Any]:
    """Counters of the only actor of a kind; nothing if it did not answer."""
    return next((c for name, c in stats.items() if name.startswith(f"{kind}-") and "error" not in c), {})


def _collection(stats: dict[str, Any]) -> dict[str, Any]:
    wanted = ("transactions", "unknown", "prefetching", "idle", "bytes", "budget", "queued", "observations", "probes")
    return {key: stats.get(key) for key in (*wanted, "scripts_verified", "verdicts", "stopped")}


def _worker(name: str, counters: dict[str, Any]) -> dict[str, Any]:
    """Name, kind, whether it answers, and its most telling counter."""
    kind = name.rpartition("-")[0]
    if "error" in counters:
        return {"name": name, "kind": kind, "ok": False, "detail": counters["error"]}
    return {"name": name, "kind": kind, "ok": True, "detail": _DETAIL.get(kind, lambda _: "")(counters)}


_DETAIL = {
    "chainstate": lambda c: f"{c['cache_entries']:,} coins cached, {c['connected']:,} blocks connected",
    "mempool": lambda c: f"{c['transactions']:,} transactions, {c['lookups']:,} lookups",
    "fetch": lambda c: f"{c['keys']['speculation']:,} outpoints read ahead, {c['keys']['validation']:,} for checks",
    "script": lambda c: (
        f"{c['inputs']['speculation']:,} inputs verified ahead, {c['inputs']['validation']:,} for checks"
    ),
    "template": lambda c: f"{c['checks']:,} checks, {c['valid']:,} valid, {c['invalid']:,} invalid",
    "collection": lambda c: (
        f"{c['open']:,} open, {c['verdicts']:,} verdicts{', prefetching' if c['slot_used'] else ''}"
    ),
    "gateway": lambda c: f"{c['calls']:,} calls, {c['sessions']:,} sessions",
}


def _json(value: Any, status: int = 200) -> web.Response:
    body = json.dumps(value, separators=(",", ":")).encode()
    return web.Response(body=body, status=status, content_type="application/json", headers=PLAIN)


def _version() -> str:
    try:
        return metadata.version("txcollection")
    except metadata.PackageNotFoundError:
        return "not installed"
