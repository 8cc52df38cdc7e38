"""What a member does about the whole state before it asks for it; ``tests/ftlib/state`` has whole jobs."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from ftlib import ConfigError, RebuildTimeout
from ftlib.common.threads import Threads
from ftlib.core.calls.session import Session
from ftlib.core.plane.plane import Plane
from ftlib.recovery import whole_state
from ftlib.recovery.joiner.http_transport import Later, Refused
from ftlib.recovery.layout.requests import POLL
from ftlib.recovery.whole_state import Transfer
from ftlib.state.registry import Registered
from tests.ftlib.recovery.holders import Model, meeting, somebody

HOLDER, OWN, OTHER = somebody(), somebody(), somebody()


@pytest.fixture
def plane() -> Plane:
    return Plane(OWN.id)


@pytest.fixture
def session(plane: Plane) -> Session:
    """The first of three holds the state."""
    session = meeting([HOLDER, OWN, OTHER], OWN.id, None)
    assert plane.activate(session)
    return session


def test_copies_are_kept_for_members_that_lack_the_state(
    plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer, copies = Transfer(plane, 1.0, 1.0), Mock()
    monkeypatch.setattr(transfer, "copies", copies)
    transfer.activated(session)
    copies.keep_only.assert_called_once_with([OWN.id, OTHER.id])


def test_who_registered_nothing_asks_once_whether_the_others_did(
    plane: Plane, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_state, "request", asked := Mock(side_effect=Refused("nor here")))
    transfer, call = Transfer(plane, 1.0, 1.0), Mock(began=plane.threads.now())
    alone = meeting([OWN, OTHER], OWN.id, None)
    for given, count in ((alone, 0), (session, 1), (session, 1)):
        assert not transfer.load(call, given)
        assert asked.call_count == count


class Clock(Threads):
    """Goes on by hand."""

    at = 100.0

    def now(self) -> float:
        return self.at


@pytest.mark.parametrize("founds", [True, False])
@pytest.mark.parametrize(("takes", "most"), [(0.0, 2.0 / whole_state.RETRY + 2), (POLL, 1)])
def test_a_donor_that_is_too_busy_is_asked_now_and_then(
    founds: bool, takes: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so at once, where it would keep a request waiting else; hundreds may ask it."""
    clock = Clock()
    plane, asked, waits = Plane(OWN.id, threads=clock), list[float](), list[float]()

    def request(*_: object) -> Mock:
        asked.append(clock.at)
        assert len(asked) < 50
        clock.at += takes
        raise Later("too many transfers at a time")

    def wait_end(_session: Session, seconds: float) -> None:
        waits.append(seconds)
        clock.at += seconds

    monkeypatch.setattr(whole_state, "request", request)
    monkeypatch.setattr(plane, "wait_end", wait_end)
    transfer = Transfer(plane, 2.0, 2.0)
    session = meeting([HOLDER, OWN], OWN.id, None, version=1)
    assert plane.activate(session)
    plane.founder = founds
    if founds:
        with pytest.raises(ConfigError, match="has not registered state within 2 s"):
            transfer.register(Registered({"model": Model([1])}))
    else:
        transfer._registered = Mock()
        with pytest.raises(RebuildTimeout, match=r"no state from .* within 2 s"):
            transfer.load(Mock(began=clock.at), session)
    assert 1 <= len(asked) <= most
    assert sum(waits) == 0.0 or not takes, "who was kept waiting asks again at once"


def test_who_has_the_state_keeps_its_gradients(plane: Plane, session: Session) -> None:
    plane.origin = plane.authority
    assert not Transfer(plane, 1.0, 1.0).load(Mock(), session)


def test_a_state_of_a_former_lifetime_is_not_used_if_nobody_can_replace_it(plane: Plane, session: Session) -> None:
    former = Transfer(plane, 1.0, 1.0)
    former._registered = Mock(private=None)
    plane.authority = ""
    assert not former.load(Mock(), session), "it is as the program has made it"
    with pytest.raises(ConfigError, match=r"nobody in .* registered state, but this worker did"):
        Transfer(plane, 1.0, 1.0, former=former).load(Mock(), session)
