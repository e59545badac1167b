"""Limits and fairness as clients meet them: one that wants too much is told so, and nobody else notices."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import ray

from cluster import Cluster
from models.errors import Busy
from models.messages import unwrap
from tests.actors.blocks import Tx, spend, split
from tests.actors.small_chain import SmallChain
from tests.actors.watching import PATIENCE, actors, stats_of, until

FLOODERS = 16
FLOOD = 4.0  # seconds
CALLS = 8  # of one client under way


@pytest.fixture(scope="module")
def node(module_node: Callable[..., Any]) -> Any:
    return module_node(
        collection_actors=1,
        max_collections=5,
        collections_bytes="1 MiB",
        max_collections_per_client=2,
        supplied_bytes_per_client=2500,
        calls_per_second_per_client=50,
    )


@pytest.fixture
def client(node: Any) -> Iterator[Callable[[], Any]]:
    """Makes clients of the node."""
    made = []

    def make() -> Any:
        made.append(Cluster.connect(store=node.store))
        return made[-1]

    yield make
    for one in made:
        one.close()
    until(lambda: stats_of(node, "collection")[0]["open"] == 0, "all collections are gone")
    assert stats_of(node, "collection")[0]["held_bytes"] == 0


@pytest.fixture
def transactions(small_chain: SmallChain) -> list[Tx]:
    return [spend(small_chain.coins[at : at + 4]) for at in range(0, 80, 4)]


def test_a_client_with_too_many_collections_is_refused_and_another_is_served(
    client: Callable[[], Any], transactions: list[Tx]
) -> None:
    greedy, modest = client(), client()
    first, _ = [greedy.collect_txs([transactions[0].id]) for _ in range(2)]
    with pytest.raises(Busy, match="2 collections of this client are open"):
        greedy.collect_txs([transactions[0].id])
    modest.collect_txs([transactions[0].id])
    first.close()
    greedy.collect_txs([transactions[0].id])


def test_all_clients_together_have_room_for_so_many_collections(
    client: Callable[[], Any], transactions: list[Tx]
) -> None:
    clients = [client() for _ in range(3)]
    for each in clients[:2]:
        for _ in range(2):
            each.collect_txs([transactions[0].id])
    clients[2].collect_txs([transactions[0].id])
    with pytest.raises(Busy, match="5 collections are open here"):
        clients[2].collect_txs([transactions[0].id])


def test_declarations_that_take_too_much_memory_are_refused(client: Callable[[], Any]) -> None:
    ids = [secrets.token_hex(32) for _ in range(2000)]
    clients = [client() for _ in range(2)]
    kept = clients[0].collect_txs(ids)
    with pytest.raises(Busy, match=r"open collections take 800000 bytes here; 800000 more are above the 1048576"):
        clients[1].collect_txs(ids)
    kept.close()
    clients[1].collect_txs(ids)


def test_a_supply_above_the_limit_changes_nothing(
    client: Callable[[], Any], transactions: list[Tx], small_chain: SmallChain
) -> None:
    some = transactions[:8]
    size = sum(len(tx.raw) for tx in some)
    assert size < 2500 < 2 * size
    one = client()
    first = one.collect_txs([tx.id for tx in some])
    second = one.collect_txs([tx.id for tx in some])
    first.add_missing_txs([tx.raw for tx in some])
    with pytest.raises(Busy, match=f"has supplied {size} bytes"):
        second.add_missing_txs([tx.raw for tx in some])
    assert second.unknown_tx_pos() == list(range(8))
    with pytest.raises(Busy, match="close a collection first"):
        second.make_template(small_chain.tip.id, missing=[tx.raw for tx in some])
    first.add_missing_txs([])
    assert first.make_template(small_chain.tip.id).ok
    first.close()
    assert second.make_template(small_chain.tip.id, missing=[tx.raw for tx in some]).ok


def test_what_was_known_already_costs_nothing(client: Callable[[], Any], transactions: list[Tx]) -> None:
    with client().collect_txs([tx.id for tx in transactions[:4]]) as collection:
        for _ in range(5):  # 3,680 bytes in all
            collection.add_missing_txs([tx.raw for tx in transactions[:4]])


def test_a_client_that_asks_too_often_is_refused_for_a_while_and_another_is_served(
    client: Callable[[], Any], transactions: list[Tx]
) -> None:
    hasty, other = client(), client()
    collection = hasty.collect_txs([transactions[0].id])
    with pytest.raises(Busy, match="more than 50 times a second"):
        for _ in range(10_000):
            collection.add_missing_txs([])
    assert other.collect_txs([transactions[0].id]).unknown_tx_pos() == [0]

    def served() -> bool:
        try:
            collection.add_missing_txs([])
            return True
        except Busy:
            return False

    until(served, "the client is served again")


def test_a_client_that_vanishes_frees_all_it_held(node: Any, transactions: list[Tx]) -> None:
    one = Cluster.connect(store=node.store)
    one.collect_txs([tx.id for tx in transactions]).add_missing_txs([transactions[0].raw])
    assert stats_of(node, "collection")[0]["held_bytes"] > 0
    one.close()
    until(lambda: stats_of(node, "collection")[0]["held_bytes"] == 0, "it was freed")


def test_a_long_supply_is_taken_in_while_others_are_served(
    chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    many = [split(small_chain.coins[at], 400) for at in range(40)]
    assert sum(len(tx.raw) for tx in many) > 100_000
    node = chain_node(collection_actors=1)
    with node.collect_txs([tx.id for tx in many]) as collection:
        collection.add_missing_txs([tx.raw for tx in many[:39]])
        assert collection.unknown_tx_pos() == [39]
        assert collection.make_template(small_chain.tip.id, missing=[many[39].raw]).ok
        broken = many[0].raw[:-1]
        with pytest.raises(Exception, match="transaction 1 of 40 does not decode"):
            collection.add_missing_txs([many[0].raw, broken, *(tx.raw for tx in many[2:])])


def uss(node: Any) -> int:
    """Bytes that no other process shares, of those that hold declarations and those that judge them."""
    pids = [pid for name, pid in node.pids().items() if name.startswith(("collection", "template"))]
    return sum(psutil.Process(pid).memory_full_info().uss for pid in pids)


@pytest.mark.parametrize("filled_with", ["ids", "transactions"])
def test_open_collections_take_no_more_memory_than_they_may(
    chain_node: Callable[..., Any], small_chain: SmallChain, filled_with: str
) -> None:
    bound = 48 << 20
    node = chain_node(collection_actors=1, collections_bytes=bound, supplied_bytes_per_client="1 GiB")
    many = [spend([coin], fee=fee) for coin in small_chain.coins for fee in range(1000, 1010)]  # of 61 bytes each
    ids = [secrets.token_hex(32) for _ in range(16_666)] if filled_with == "ids" else [tx.id for tx in many]
    with node.collect_txs(ids[:1]) as collection:  # from here on everything is loaded
        collection.make_template(small_chain.tip.id)
    before = uss(node)
    kept = []
    with pytest.raises(Busy, match="open collections take"):
        for _ in range(1000):
            kept.append(node.collect_txs(ids))
            if filled_with == "transactions":
                kept[-1].add_missing_txs([tx.raw for tx in many])
    assert len(kept) > 3
    assert uss(node) - before < bound + (24 << 20)


@pytest.mark.parametrize("greedy", [0, 1])
def test_while_sixteen_clients_flood_each_is_served_its_share(
    greedy: int, chain_node: Callable[..., Any], small_chain: SmallChain
) -> None:
    """One of them has eight times as many calls under way as each of the others. The first one's declaration has the
    slot and is judged where it is held; the others share a template actor. Counts, not times, are compared."""
    node = chain_node(collection_actors=1, calls_per_second_per_client=0)
    transactions = [spend([coin]) for coin in small_chain.coins[:20]]
    [actor] = actors(node, "collection")
    blob = b"".join(bytes.fromhex(tx.id)[::-1] for tx in transactions)
    raws = [tx.raw for tx in transactions]
    for name in range(FLOODERS):
        unwrap(ray.get(actor.open.remote(str(name), f"client {name}", False, blob)))
        unwrap(ray.get(actor.add_missing_txs.remote(str(name), raws)))

    def ask(name: int) -> Any:
        return actor.make_template.remote(str(name), small_chain.tip.hash, None, [], None, None)

    for name in range(FLOODERS):  # from here on its scripts and coins are known
        assert unwrap(ray.get(ask(name)))[0] == "valid"
    asked = {ask(name): name for name in range(FLOODERS) for _ in range(64 if name == greedy else CALLS)}
    served = dict.fromkeys(range(FLOODERS), 0)
    end = time.monotonic() + FLOOD
    while time.monotonic() < end or min(served.values()) < CALLS:
        assert time.monotonic() < end + PATIENCE, served
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0.02)
        lately = Counter(asked[reference] for reference in done)
        if all(lately[name] < CALLS for name in range(1, FLOODERS) if name != greedy):
            for name, count in lately.items():
                served[name] += count
        # else this test came too late to ask anew: for a while one of them wanted nothing, and others had its share
        for reference in done:
            assert unwrap(ray.get(reference))[0] == "valid"
            name = asked.pop(reference)
            asked[ask(name)] = name
    own = served.pop(0)
    mean = sum(served.values()) / len(served)
    assert all(mean / 2 <= count <= 2 * mean for count in served.values()), served
    assert own >= mean / 2, (own, served)
