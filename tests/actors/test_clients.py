"""What one client may have and ask for: every limit answers `Busy`, and what was taken is given back exactly."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.clients import MOST_PENDING, Clients
from models.errors import Busy

LIMITS: dict[str, Any] = {
    "collection_actors": 2,
    "max_collections": 6,
    "collections_bytes": 2000,
    "max_collections_per_client": 2,
    "supplied_bytes_per_client": 500,
    "pending_calls_per_client": 3,
    "calls_per_second_per_client": 0,
}


def clients(**limits: Any) -> Clients:
    return Clients({**LIMITS, **limits})


def test_a_third_collection_of_a_client_is_refused_and_another_client_is_served() -> None:
    all_ = clients()
    all_.open("a", 1)
    all_.open("a", 1)
    with pytest.raises(Busy, match="2 collections of this client are open"):
        all_.open("a", 1)
    all_.open("b", 1)
    all_.close("a", 1, 0)
    all_.open("a", 1)


def test_all_clients_together_have_this_process_share_of_the_collections() -> None:
    all_ = clients()
    for name in "abc":
        all_.open(name, 1)
    with pytest.raises(Busy, match="3 collections are open here"):
        all_.open("d", 1)


def test_all_clients_together_have_this_process_share_of_the_bytes() -> None:
    all_ = clients()
    all_.open("a", 600)
    with pytest.raises(Busy, match="600 bytes here; 401 more are above the 1000 allowed"):
        all_.open("b", 401)
    assert all_.of("b").collections == 0
    all_.open("b", 400)


def test_supplied_bytes_are_counted_and_given_back() -> None:
    all_ = clients()
    all_.open("a", 0)
    all_.supply("a", 300)
    with pytest.raises(Busy, match="has supplied 300 bytes .* with 201 more .* above the 500"):
        all_.supply("a", 201)
    all_.unsupply("a", 100)
    all_.supply("a", 201)
    all_.close("a", 0, 401)
    assert all_.nbytes == 0
    assert all_.of("a").empty


def test_a_fourth_call_at_a_time_is_refused() -> None:
    all_ = clients()
    with all_.calling("a"), all_.calling("a"), all_.calling("a"):
        with pytest.raises(Busy, match="3 calls of this client wait"), all_.calling("a"):
            pass
        with all_.calling("b"):
            pass
    with all_.calling("a"):
        pass


def test_all_clients_together_have_so_many_calls_at_a_time() -> None:
    all_ = clients()
    with ExitStack() as under_way:
        for n in range(MOST_PENDING):
            under_way.enter_context(all_.calling(f"client {n // 3}"))
        with pytest.raises(Busy, match="512 calls wait for an answer here"), all_.calling("another"):
            pass
    with all_.calling("another"):
        pass


def test_a_call_that_fails_is_over() -> None:
    all_ = clients(pending_calls_per_client=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="mistake"), all_.calling("a"):
            raise ValueError("mistake")


def test_calls_beyond_the_rate_are_refused_until_time_has_passed() -> None:
    now = [100.0]
    all_ = Clients({**LIMITS, "calls_per_second_per_client": 10}, clock=lambda: now[0])

    def calls() -> int:
        for n in range(1000):
            try:
                with all_.calling("a"):
                    pass
            except Busy as busy:
                assert "more than 10 times a second" in str(busy)
                return n
        raise AssertionError("never refused")

    assert calls() == 10
    with all_.calling("b"):
        pass
    now[0] += 0.5
    assert calls() == 5
    now[0] += 1000
    assert calls() == 10
    assert all_.refused == 3


def test_clients_that_hold_nothing_are_forgotten() -> None:
    all_ = clients()
    all_.open("holder", 1)
    for n in range(5000):
        with all_.calling(f"passer-by {n}"):
            pass
    assert all_.stats()["clients"] <= 1001
    assert all_.of("holder").collections == 1


@given(st.lists(st.tuples(st.sampled_from(["open", "supply", "close"]), st.sampled_from("abc"), st.integers(0, 400))))
def test_whatever_happens_all_that_was_taken_can_be_given_back(steps: list[tuple[str, str, int]]) -> None:
    all_ = clients()
    held: dict[str, list[list[int]]] = {name: [] for name in "abc"}
    actions: dict[str, Callable[[str, int], None]] = {}

    def open_(name: str, size: int) -> None:
        all_.open(name, size)
        held[name].append([size, 0])

    def supply(name: str, size: int) -> None:
        if held[name]:
            all_.supply(name, size)
            held[name][0][1] += size

    def close(name: str, _: int) -> None:
        if held[name]:
            size, supplied = held[name].pop()
            all_.close(name, size, supplied)

    actions = {"open": open_, "supply": supply, "close": close}
    for action, name, size in steps:
        try:
            actions[action](name, size)
        except Busy:
            pass
        assert all_.nbytes == sum(size for entries in held.values() for size, _ in entries) <= 1000
        assert all(sum(supplied for _, supplied in entries) <= 500 for entries in held.values())
    for name, entries in held.items():
        for _ in range(len(entries)):
            close(name, 0)
        assert all_.of(name).empty
    assert all_.nbytes == 0
