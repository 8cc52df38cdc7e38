"""The protocol's state machines: what the tables say, and that the code keeps to them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from consensus.border import Built, Leave
from consensus.errors import (
    ExcludedError,
    FoundedApartError,
    JoinError,
    LeftError,
    OvertakenError,
    QuorumLostError,
    StoppedError,
)
from consensus.messages import Accept, Activate, Install
from consensus.messages.reports import Reports
from consensus.protocol.agreement.attempt import ATTEMPT, Attempt, AttemptPhase, Outcome
from consensus.protocol.agreement.installation import INSTALLATION, Gain, Installation, InstallationStage
from consensus.protocol.detection.probe import PROBE
from consensus.protocol.state.inputs import Died
from consensus.protocol.state.life import LIFE, Life, Turn, turn_of
from consensus.protocol.state.member_table import BELIEF, Sign
from consensus.protocol.state.standing import STANDING, Standing, StandingEvent
from consensus.simulation import World, judged
from consensus.transitions import IllegalTransitionError, Table
from ftlib.core.plane.phase import PLANE

from .people import core_of, machine_in, member, sends, view_of

TABLES: list[Table[Any, Any]] = [ATTEMPT, PROBE, BELIEF, LIFE, STANDING, INSTALLATION, PLANE]


class Light(Enum):
    RED = 1
    GREEN = 2
    BROKEN = 3


class Turns(Enum):
    GO = 1
    STOP = 2
    HIT = 3


def test_a_table_leads_from_state_to_state() -> None:
    rows = {Light.RED: {Turns.GO: Light.GREEN, Turns.HIT: Light.BROKEN}, Light.GREEN: {Turns.STOP: Light.RED}}
    table = Table("lights", Light.RED, rows)
    assert table.after(Light.RED, Turns.GO) is Light.GREEN
    assert table.final == {Light.BROKEN}
    assert list(table)[-1] == (Light.GREEN, Turns.STOP, Light.RED)
    with pytest.raises(IllegalTransitionError, match="lights: STOP cannot happen in state BROKEN"):
        table.after(Light.BROKEN, Turns.STOP)


def test_a_table_with_a_state_that_nothing_leads_to_is_refused() -> None:
    with pytest.raises(ValueError, match="no way leads to BROKEN"):
        Table("lights", Light.RED, {Light.RED: {Turns.GO: Light.GREEN}, Light.GREEN: {Turns.STOP: Light.RED}})


def test_a_table_with_an_event_that_never_happens_is_refused() -> None:
    rows = {Light.RED: {Turns.GO: Light.GREEN}, Light.GREEN: {Turns.GO: Light.BROKEN}}
    with pytest.raises(ValueError, match="STOP, HIT happens nowhere"):
        Table("lights", Light.RED, rows)


def test_no_life_begins_again() -> None:
    ends = LIFE.final
    assert ends == {Life.TURNED_AWAY, Life.LEFT, Life.EXCLUDED, Life.BLOCKED, Life.DEAD}
    assert all(any(target in ends for source, _, target in LIFE if source is state) for state in set(Life) - ends)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_state_that_is_no_end_can_end(table: Table[Any, Any]) -> None:
    leads = {state: {target for source, _, target in table if source is state} for state in table.states}
    for state in table.states:
        reached, fresh = {state}, [state]
        while fresh:
            found = leads[fresh.pop()] - reached
            reached |= found
            fresh += found
        assert reached & table.final, f"{table.name}: nothing ends {state}"


@pytest.mark.parametrize(
    ("error", "turn"),
    [
        (JoinError("x"), Turn.NOT_ADMITTED),
        (LeftError("x"), Turn.WENT),
        (ExcludedError("x"), Turn.EXCLUDED),
        (OvertakenError("x"), Turn.OVERTAKEN),
        (FoundedApartError("x"), Turn.OVERTAKEN),
        (QuorumLostError("x"), Turn.QUORUM_LOST),
        (StoppedError("x"), Turn.DIED),
    ],
)
def test_every_reason_to_stop_is_a_turn_of_life(error: StoppedError, turn: Turn) -> None:
    assert turn_of(error) is turn


def test_a_member_without_a_view_loses_no_quorum() -> None:
    core = core_of()
    with pytest.raises(IllegalTransitionError, match="life: QUORUM_LOST cannot happen in state SEARCHING"):
        core.stop(QuorumLostError("no"))


def test_a_members_life() -> None:
    machine = machine_in("abc", "b")
    core = machine._core
    assert (core.life, core.standing) == (Life.MEMBER, Standing.ACTIVE)
    machine.handle(Leave(None), 101.0)
    machine.handle(Leave(None), 101.1)
    assert core.life is Life.LEAVING and core.leaving
    machine.handle(Died("killed", StoppedError("killed")), 100.0)
    assert core.life is Life.DEAD
    machine.handle(Leave(None), 102.0)
    assert core.life is Life.DEAD and not core.leaving


def test_whoever_leaves_may_be_overtaken() -> None:
    core = machine_in("abc", "b")._core
    core.turn(Turn.LEAVE_REQUESTED)
    core.stop(OvertakenError("the other side goes on"))
    assert core.life is Life.EXCLUDED


def test_a_founders_life_begins_without_an_admission() -> None:
    world = judged(World(1))
    (host,) = world.cluster(1)
    core = host.machine._core
    assert (core.life, core.standing) == (Life.MEMBER, Standing.ACTIVE)


def test_an_attempt_is_chosen_once() -> None:
    view = view_of("abc")
    one = Attempt(view, (1, "a"), None, 100.0)
    with pytest.raises(IllegalTransitionError, match="ACCEPTED cannot happen in state PREPARE"):
        one.advance(Outcome.ACCEPTED)
    one.advance(Outcome.PROMISED)
    one.advance(Outcome.ACCEPTED)
    assert one.phase is AttemptPhase.CHOSEN
    with pytest.raises(IllegalTransitionError, match="REFUSED cannot happen in state CHOSEN"):
        one.advance(Outcome.REFUSED)


def test_what_overtakes_an_attempt_ends_it() -> None:
    machine = machine_in("abc", "a")
    machine._change.boundary(1, (), 101.0)
    attempt = machine._change.proposer.attempt
    assert attempt is not None and attempt.phase is AttemptPhase.ACCEPT
    assert sends(machine.drain(), Accept)
    machine._change.adopt(view_of("abc", 2, view_of("abc").view_id), "b", 101.0)
    assert attempt.phase is AttemptPhase.OVERTAKEN


def test_install_goes_out_once() -> None:
    one = Installation(view_of("ab"), None, (0, "a"), {}, 100.0)
    assert not one.sent
    one.advance(Gain.REPORTED)
    assert one.sent and not one.active
    with pytest.raises(IllegalTransitionError, match="REPORTED cannot happen in state READIES"):
        one.advance(Gain.REPORTED)
    one.advance(Gain.ALL_READY)
    assert one.active
    assert one.stage is InstallationStage.ACTIVE


def test_a_view_comes_to_life_in_order() -> None:
    machine = machine_in("ab", "b")
    core, view = machine._core, view_of("ab", 2, view_of("ab").view_id)
    machine._change.adopt(view, "a", 101.0)
    assert core.standing is Standing.CHOSEN
    machine._change.voter._flush.store(2, b"r")
    machine.receive("a", member("a").address, Install(view, None, (0, "a"), Reports.of([b"q", b"r"])), 101.1)
    assert core.standing is Standing.INSTALLED
    machine.receive("a", member("a").address, Activate(2, view.view_id), 101.2)
    assert core.standing is Standing.INSTALLED, "not before its own group is built"
    machine.handle(Built(view.view_id), 101.3)
    machine.handle(Built(view.view_id), 101.3)
    assert core.standing is Standing.READY
    machine.receive("a", member("a").address, Activate(2, view.view_id), 101.4)
    machine.receive("a", member("a").address, Activate(2, view.view_id), 101.5)
    assert core.standing is Standing.ACTIVE
    with pytest.raises(IllegalTransitionError):
        core.advance(StandingEvent.ACTIVATE)


def test_a_belief_in_death_is_final() -> None:
    with pytest.raises(IllegalTransitionError):
        BELIEF.after(BELIEF.after(BELIEF.start, Sign.PROVEN), Sign.REFUTED)
