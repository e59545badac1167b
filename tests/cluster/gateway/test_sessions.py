"""Who owns a collection, when it goes, and what one client may hold; over a fake that notes what is freed."""

from typing import Any

import pytest

from cluster.gateway.jsonrpc import RpcError
from cluster.gateway.sessions import Held, Session, Sessions
from models.errors import Busy, CollectionLost

LIMITS: dict[str, Any] = {
    "max_collections": 6,
    "max_collections_per_client": 3,
    "supplied_bytes_per_client": 100,
    "pending_calls_per_client": 2,
    "collection_idle_s": 60,
}


class Desk:
    """Sessions, and the keys of what was freed."""

    def __init__(self) -> None:
        self.freed: list[str] = []
        self.sessions = Sessions(LIMITS, lambda _, key: self.freed.append(key))

    def open(self, session: Session, key: str) -> Held:
        with self.sessions.opening(session):
            held = Held(key, "actor", 1, 1)
            self.sessions.add(session, held)
        return held


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_connection_is_a_client(desk: Desk) -> None:
    assert desk.sessions.of("ann", "c1", None) is desk.sessions.of("ann", "c1", None)
    assert desk.sessions.of("ann", "c1", None) is not desk.sessions.of("ann", "c2", None)
    assert desk.sessions.of("ann", "c1", None) is not desk.sessions.of("bob", "c1", None)


def test_a_name_is_a_client_of_its_user_on_any_connection(desk: Desk) -> None:
    assert desk.sessions.of("ann", "c1", "job") is desk.sessions.of("ann", "c2", "job")
    assert desk.sessions.of("ann", "c1", "job") is not desk.sessions.of("bob", "c1", "job")
    assert desk.sessions.of("ann", "c1", "connection-1") is not desk.sessions.of("ann", "c1", None)


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", "\x00"])
def test_bad_name(desk: Desk, name: str) -> None:
    with pytest.raises(RpcError, match="a session's name must have 1 to 64 printable characters"):
        desk.sessions.of("ann", "c1", name)


def test_only_the_owner_finds_a_collection(desk: Desk) -> None:
    ann, bob = desk.sessions.of("ann", "c1", None), desk.sessions.of("bob", "c2", None)
    desk.open(ann, "k")
    with desk.sessions.using(ann, "k") as held:
        assert held.key == "k"
    with pytest.raises(CollectionLost), desk.sessions.using(bob, "k"):
        pass


def test_end_of_the_connection_frees_what_was_made_on_it(desk: Desk) -> None:
    ann, named = desk.sessions.of("ann", "c1", None), desk.sessions.of("ann", "c1", "job")
    desk.open(ann, "k1")
    desk.open(named, "k2")
    desk.sessions.connection_lost("c1")
    assert desk.freed == ["k1"]
    assert desk.sessions.collections == 1


def test_a_call_under_way_is_let_finish(desk: Desk) -> None:
    ann = desk.sessions.of("ann", "c1", None)
    desk.open(ann, "k")
    with desk.sessions.using(ann, "k"):
        desk.sessions.connection_lost("c1")
        assert desk.freed == []
    assert desk.freed == ["k"]


def test_a_collection_that_comes_after_its_client_went_is_freed(desk: Desk) -> None:
    ann = desk.sessions.of("ann", "c1", None)
    with desk.sessions.opening(ann):
        desk.sessions.connection_lost("c1")
        desk.sessions.add(ann, Held("k", "actor", 1, 1))
    assert desk.freed == ["k"]


def test_collections_of_one_client_are_bounded(desk: Desk) -> None:
    ann = desk.sessions.of("ann", "c1", None)
    held = [desk.open(ann, f"k{n}") for n in range(3)]
    with pytest.raises(Busy, match="3 collections of this client are open"):
        desk.open(ann, "k3")
    desk.sessions.close(ann, held[0])
    desk.open(ann, "k3")


def test_collections_of_all_clients_are_bounded(desk: Desk) -> None:
    for n in range(6):
        desk.open(desk.sessions.of("ann", f"c{n // 3}", None), f"k{n}")
    with pytest.raises(Busy, match="6 collections are open here"):
        desk.open(desk.sessions.of("ann", "c9", None), "k6")


def test_calls_of_one_client_are_bounded(desk: Desk) -> None:
    ann, bob = desk.sessions.of("ann", "c1", "job"), desk.sessions.of("bob", "c2", None)
    with desk.sessions.calling(ann), desk.sessions.calling(ann):
        with pytest.raises(Busy, match="2 calls of this client wait"), desk.sessions.calling(ann):
            pass
        with desk.sessions.calling(bob):
            assert desk.sessions.pending == 3
    assert desk.sessions.pending == 0


def test_supplied_bytes_of_one_client_are_bounded_until_a_collection_is_closed(desk: Desk) -> None:
    ann = desk.sessions.of("ann", "c1", None)
    held = desk.open(ann, "k")
    held.supplied = 90
    desk.sessions.room_for(ann, 10)
    with pytest.raises(Busy, match="supplied 90 bytes"):
        desk.sessions.room_for(ann, 11)
    desk.sessions.close(ann, held)
    desk.sessions.room_for(ann, 100)


def test_what_nobody_uses_is_closed(desk: Desk) -> None:
    ann = desk.sessions.of("ann", "c1", None)
    old, fresh = desk.open(ann, "old"), desk.open(ann, "fresh")
    old.used -= 61
    desk.sessions.sweep()
    assert desk.freed == ["old"]
    with desk.sessions.using(ann, fresh.key):
        fresh.used -= 61
        desk.sessions.sweep()
    assert desk.freed == ["old"]


def test_sessions_do_not_pile_up(desk: Desk) -> None:
    for n in range(5):
        connection = f"c{n}"
        with desk.sessions.calling(desk.sessions.of("ann", connection, None)):
            pass
        with desk.sessions.calling(desk.sessions.of("ann", connection, f"job-{n}")):
            pass
        desk.sessions.connection_lost(connection)
    assert len(desk.sessions) == 0


def test_logs_show_the_beginning_of_an_id_only() -> None:
    assert Held("0123456789abcdef" * 2, "actor", 1, 1).prefix == "01234567"
