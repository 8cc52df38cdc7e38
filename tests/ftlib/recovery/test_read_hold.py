"""Calls do not end at a donor before requests about the state on entry to them are answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from consensus import RefusalError
from ftlib.common.refusals import Refusal
from ftlib.core.plane.orders import Order
from ftlib.recovery.donor import donor as donor_module
from ftlib.recovery.donor import read_hold as hold
from tests.harness.basics import around, eventually
from tests.harness.company import in_thread

from .holders import STATE_ID, TIMEOUT, VERSION, Holder, Model, somebody


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Inside call ``VERSION``."""
    made = Holder(Model([3]))
    made.meet([somebody()])
    made.enter()
    yield made
    made.close()


def ask(holder: Holder, **query: object) -> bytes:
    """What is inline."""
    return b"".join(holder.donor.source({"ask": "inline", **{name: str(value) for name, value in query.items()}}))


def test_calls_wait_for_an_answer(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "POLL", TIMEOUT)
    monkeypatch.setattr(hold, "PATIENCE", TIMEOUT)
    looking, go_on = threading.Event(), threading.Event()

    @around(monkeypatch, donor_module, "split")
    def slow(original: Any, *args: Any) -> Any:
        looking.set()
        assert go_on.wait(TIMEOUT)
        return original(*args)

    answers: list[bytes] = []
    asking = in_thread(lambda: answers.append(ask(holder, version=VERSION + 1, origin=STATE_ID)))
    eventually(lambda: VERSION + 1 in holder.donor._read_hold._open, "the question is there")
    holder.donor.ended(VERSION)  # which nobody asks about: this returns
    holder.leave()
    holder.enter()
    assert looking.wait(TIMEOUT)
    leaving = in_thread(lambda: holder.donor.ended(VERSION + 1))
    leaving.join(0.05)  # long enough for who does not wait
    assert leaving.is_alive()
    go_on.set()
    leaving.join(TIMEOUT)
    asking.join(TIMEOUT)
    assert answers


def test_calls_wait_for_who_was_told_to_ask_again(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two requests the call could pass."""
    monkeypatch.setattr(donor_module, "POLL", 0.0)
    for name in ("PATIENCE", "GRACE"):
        monkeypatch.setattr(hold, name, TIMEOUT)
    prefetch: dict[str, object] = {"version": VERSION + 1, "origin": STATE_ID}
    with pytest.raises(LookupError, match="ask again"):
        ask(holder, **prefetch)
    holder.leave()
    holder.enter()
    leaving = in_thread(lambda: holder.donor.ended(VERSION + 1))
    leaving.join(0.05)  # long enough for who does not wait
    assert leaving.is_alive()
    assert ask(holder, **prefetch)
    leaving.join(TIMEOUT / 2)
    assert not leaving.is_alive()
    assert not holder.donor._read_hold._again


def test_calls_do_not_wait_long_for_who_was_told_to_ask_again(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "POLL", 0.0)
    monkeypatch.setattr(hold, "PATIENCE", TIMEOUT)
    monkeypatch.setattr(hold, "GRACE", 0.01)
    with pytest.raises(LookupError, match="ask again"):
        ask(holder, version=VERSION + 1, origin=STATE_ID)
    holder.leave()
    holder.enter()
    leaving = in_thread(lambda: holder.donor.ended(VERSION + 1))
    leaving.join(TIMEOUT / 2)
    assert not leaving.is_alive()


def test_calls_wait_for_that_as_long_as_it_may_take(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    read_hold, waits = holder.donor._read_hold, list[float]()
    with pytest.raises(RefusalError), read_hold.asking(VERSION):
        raise Refusal.LATER.error("ask again")

    def wait(seconds: float) -> None:
        waits.append(seconds)
        read_hold.forget()

    monkeypatch.setattr(holder.plane.changed, "wait", wait)
    read_hold.ending(VERSION)
    [seconds] = waits
    assert 0.0 < seconds <= hold.GRACE


def test_calls_do_not_wait_for_what_was_asked_in_another_view(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donor_module, "POLL", 0.0)
    for name in ("PATIENCE", "GRACE"):
        monkeypatch.setattr(hold, name, TIMEOUT)
    with pytest.raises(LookupError, match="ask again"):
        ask(holder, version=VERSION + 1, origin=STATE_ID)
    holder.leave()
    holder.enter()
    leaving = in_thread(lambda: holder.donor.ended(VERSION + 1))
    assert holder.plane.session is not None
    holder.donor.activated(holder.plane.session)
    leaving.join(TIMEOUT / 2)
    assert not leaving.is_alive()


def test_calls_do_not_wait_for_ever(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "PATIENCE", 0.01)
    with holder.donor._read_hold.asking(VERSION):
        holder.donor.ended(VERSION)


def test_calls_do_not_wait_once_they_are_frozen(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "PATIENCE", TIMEOUT)
    with holder.donor._read_hold.asking(VERSION):
        leaving = in_thread(lambda: holder.donor.ended(VERSION))
        holder.plane.freeze(Order(9, None))
        leaving.join(TIMEOUT / 2)
        assert not leaving.is_alive()
