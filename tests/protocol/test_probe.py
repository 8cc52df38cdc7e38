"""Ping, then through others, then failed; relays and their nacks."""

from __future__ import annotations

from random import Random

import pytest

from consensus.protocol.detection.probe import Prober, ProbeStage
from consensus.protocol.state.lifeguard import Awareness

from .people import CONFIG, member

ROUND = CONFIG.contact_interval


def prober() -> Prober:
    return Prober(CONFIG, Random(1), Awareness(CONFIG.awareness_max))


def test_everybody_given_is_pinged_each_round() -> None:
    one = prober()
    probes = one.begin_round([member(name) for name in "abcde"], ROUND, 10.0)
    assert [probe.target.id for probe in probes] == list("abcde")
    assert one.next_round == 10.0 + ROUND


def test_nobody_to_ping() -> None:
    assert prober().begin_round([], ROUND, 10.0) == []


def test_unanswered_is_tried_through_others_and_then_fails() -> None:
    one = prober()
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    assert one.overdue(10.0 + CONFIG.probe_timeout - 0.001) == ([], [])
    assert one.overdue(10.0 + CONFIG.probe_timeout) == ([probe], [])
    assert probe.stage is ProbeStage.INDIRECT
    assert one.overdue(10.2) == ([], []), "asked once"
    assert one.overdue(probe.fail_at) == ([], [probe])
    assert one.probes == {}


def test_an_answer_ends_it_once() -> None:
    one = prober()
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    assert one.answered(probe.seq, "b") is None, "not its target"
    assert one.answered(probe.seq, "a") is probe
    assert one.answered(probe.seq, "a") is None, "replayed"
    assert one.overdue(20.0) == ([], [])


def test_nothing_is_due_for_who_showed_life_otherwise() -> None:
    one = prober()
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    one.answered_otherwise("a")
    assert one.deadline() == min(one.next_round, probe.fail_at), "whoever waits for the deadline would be woken for nothing"


@pytest.mark.parametrize(("helpers", "nacks", "score"), [(0, 0, 1), (3, 3, 0), (3, 0, 3), (3, 2, 1)])
def test_missing_nacks_point_at_oneself(helpers: int, nacks: int, score: int) -> None:
    one = prober()
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    probe.helpers = helpers
    for _ in range(nacks):
        one.nacked(probe.seq)
    one.overdue(probe.fail_at)
    assert one.awareness.score == score


def test_awareness_stretches_the_probe() -> None:
    one = prober()
    one.awareness.worse(2)
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    assert probe.ask_others_at == pytest.approx(10.0 + 3 * CONFIG.probe_timeout)


def test_a_relay_says_nack_once_and_in_time() -> None:
    one = prober()
    seq = one.relay(("10.0.0.1", 7), 42, 10.0)
    due = 10.0 + CONFIG.nack_share * CONFIG.probe_timeout
    assert one.deadline() <= due
    assert one.due_nacks(due - 0.001) == []
    [relay] = one.due_nacks(due)
    assert (relay.asker, relay.asker_seq) == (("10.0.0.1", 7), 42)
    assert one.due_nacks(due + 0.001) == []
    assert seq in one.relays, "a late ack is still passed on"
    one.due_nacks(10.0 + 10 * CONFIG.probe_timeout)
    assert one.relays == {}


def test_forget() -> None:
    one = prober()
    one.begin_round([member("a"), member("b")], ROUND, 10.0)
    one.forget(frozenset("b"))
    assert [probe.target.id for probe in one.probes.values()] == ["b"]


def test_life_shown_by_other_means_ends_the_accusation_but_an_ack_is_still_contact() -> None:
    one = prober()
    [probe] = one.begin_round([member("b")], ROUND, 10.0)
    one.answered_otherwise("b")
    assert one.overdue(10.2) == ([], []), "nobody else is asked"
    assert one.answered(probe.seq, "b") is probe
    [probe] = one.begin_round([member("b")], ROUND, 11.0)
    one.answered_otherwise("b")
    assert one.overdue(20.0) == ([], []), "nor is it suspected"
    assert one.awareness.score == 0


def test_who_could_receive_nothing_for_a_while_waits_that_much_longer_for_answers() -> None:
    one = prober()
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    one.postpone(3.0)
    assert one.overdue(13.0 + CONFIG.probe_timeout - 0.001) == ([], [])
    assert one.overdue(13.0 + CONFIG.probe_timeout) == ([probe], [])
    assert one.overdue(13.0 + ROUND - 0.001) == ([], [])
    assert one.overdue(13.0 + ROUND) == ([], [probe])


def test_no_number_comes_twice_wherever_they_begin() -> None:
    """An answer belongs to one ping: taken for that to a later one it would be contact that there was not."""

    class FromZero(Random):
        def getrandbits(self, _k: int) -> int:
            return 0

    one = Prober(CONFIG, FromZero(), Awareness(CONFIG.awareness_max))
    numbers = [one.next_seq() for _ in range(5)]
    assert len(set(numbers)) == 5


def test_a_stretched_probe_leaves_helpers_one_and_a_half_timeouts() -> None:
    """The round alone would be over before they are asked."""
    one = prober()
    one.awareness.worse(8)
    [probe] = one.begin_round([member("a")], ROUND, 10.0)
    timeout = 9 * CONFIG.probe_timeout
    assert one.overdue(10.0 + 1.01 * timeout) == ([probe], [])
    assert one.overdue(10.0 + 2.49 * timeout) == ([], [])
    assert one.overdue(10.0 + 2.51 * timeout) == ([], [probe])
