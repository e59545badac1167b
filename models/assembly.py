"""Choosing transactions for a block of our own: the best ancestor package by fee rate first (Core: node/miner.cpp),
within weight and sigop limits. What comes out is only a proposal and goes through the same check as everybody's.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.consensus.params import MAX_BLOCK_SIGOPS_COST, MAX_BLOCK_WEIGHT
from models.mempool import MempoolEntry

__all__ = ["RESERVED_SIGOPS", "RESERVED_WEIGHT", "Candidate", "select"]

RESERVED_WEIGHT = 8000  # weight units for header, count and coinbase (Core: -blockreservedweight)
RESERVED_SIGOPS = 400  # sigop cost for the coinbase (Core: coinbase_output_max_additional_sigops)
GIVE_UP_AFTER = 1000  # packages that do not fit, once the block is nearly full (Core: MAX_CONSECUTIVE_FAILURES)
NEARLY_FULL = 4000  # weight units


@dataclass(frozen=True, slots=True)
class Candidate:
    """A transaction that could stand in the next block. Fee in satoshis; `parents` are the txids it spends from."""

    txid: bytes
    fee: int
    weight: int
    sigop_cost: int
    parents: frozenset[bytes]

    @classmethod
    def of(cls, entry: MempoolEntry) -> "Candidate":
        """From a mempool entry whose coins were seen."""
        assert entry.fee is not None and entry.sigop_cost is not None
        record = entry.record
        parents = frozenset(prevout[:32] for prevout in entry.prevouts)
        return cls(record.txid, entry.fee, entry.weight, entry.sigop_cost, parents)


class _Graph:
    """Ancestors and descendants among the candidates."""

    def __init__(self, candidates: Sequence[Candidate], unavailable: frozenset[bytes]):
        by_txid = {c.txid: c for c in candidates}
        self.ancestors: dict[bytes, frozenset[bytes]] = {}
        for candidate in candidates:
            self._resolve(candidate.txid, by_txid, unavailable)
        self.usable = {
            txid: by_txid[txid]
            for txid, found in self.ancestors.items()
            if txid not in unavailable and not found & unavailable
        }
        self.descendants: dict[bytes, list[bytes]] = {}
        for txid in self.usable:
            for ancestor in self.ancestors[txid]:
                self.descendants.setdefault(ancestor, []).append(txid)

    def _resolve(self, txid: bytes, by_txid: dict[bytes, Candidate], unavailable: frozenset[bytes]) -> None:
        stack = [txid]
        while stack:
            current = stack[-1]
            parents = [p for p in by_txid[current].parents if p in by_txid or p in unavailable]
            waiting = [p for p in parents if p in by_txid and p not in self.ancestors]
            if waiting:
                stack.extend(waiting)
                continue
            found: frozenset[bytes] = frozenset(parents)
            for parent in parents:
                found |= self.ancestors.get(parent, frozenset())
            self.ancestors[current] = found
            stack.pop()


def select(
    candidates: Iterable[Candidate],
    reserved_weight: int = RESERVED_WEIGHT,
    reserved_sigops: int = RESERVED_SIGOPS,
    unavailable: Iterable[bytes] = (),
) -> list[Candidate]:
    """The block's transactions, parents before children.

    `unavailable` are txids of mempool transactions that cannot be used; nothing that descends from one is chosen.
    """
    pool = list(candidates)
    graph = _Graph(pool, frozenset(unavailable))
    usable = graph.usable
    room = MAX_BLOCK_WEIGHT - reserved_weight
    sigops_room = MAX_BLOCK_SIGOPS_COST - reserved_sigops
    chosen: list[Candidate] = []
    taken: set[bytes] = set()
    failures = 0

    def package(txid: bytes) -> list[Candidate]:
        return [usable[a] for a in graph.ancestors[txid] if a in usable and a not in taken] + [usable[txid]]

    def score(members: Sequence[Candidate]) -> float:
        return -sum(c.fee for c in members) / sum(c.weight for c in members)

    heap = [(score(package(txid)), txid) for txid in usable]
    heapq.heapify(heap)
    while heap and failures < GIVE_UP_AFTER:
        rate, txid = heapq.heappop(heap)
        if txid in taken:
            continue
        members = package(txid)
        now = score(members)
        if now != rate:  # an ancestor was taken meanwhile
            heapq.heappush(heap, (now, txid))
            continue
        weight, sigops = sum(c.weight for c in members), sum(c.sigop_cost for c in members)
        if weight > room or sigops > sigops_room:
            if room < NEARLY_FULL:
                failures += 1
            continue
        failures = 0
        members.sort(key=lambda c: len(graph.ancestors[c.txid]))
        chosen += members
        room -= weight
        sigops_room -= sigops
        for member in members:
            taken.add(member.txid)
        for descendant in {d for m in members for d in graph.descendants.get(m.txid, ())} - taken:
            heapq.heappush(heap, (score(package(descendant)), descendant))
    return chosen
