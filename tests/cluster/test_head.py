"""Asking a Ray that may die meanwhile: the question is given up with it, an answer or an error comes through."""

import threading
import time

import pytest

from cluster import head


def test_answer_and_error_come_through() -> None:
    said: list[int] = []
    assert head.while_ray_lives(lambda: said.append(1))
    assert said == [1]

    def fails() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        head.while_ray_lives(fails)


def test_question_to_a_dead_ray_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "SURE", 0.3)
    monkeypatch.setattr(head, "dead_of_ray", lambda: ["gcs_server"])
    never = threading.Event()
    try:
        assert not head.while_ray_lives(never.wait)
    finally:
        never.set()


def test_error_of_a_question_to_a_dead_ray_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "dead_of_ray", lambda: ["raylet"])

    def fails() -> None:
        raise ConnectionError

    assert not head.while_ray_lives(fails)


def test_ray_that_dies_in_order_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes end one after the other, and meanwhile some are dead."""
    monkeypatch.setattr(head, "dead_of_ray", lambda: ["raylet"])
    assert head.while_ray_lives(lambda: time.sleep(0.5))


def test_ray_that_hangs_is_given_up() -> None:
    never = threading.Event()
    try:
        assert not head.while_ray_lives(never.wait, patience=0.3)
    finally:
        never.set()
