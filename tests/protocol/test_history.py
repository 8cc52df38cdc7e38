"""The record of view changes: the right evidence from the right member, in the right order, at every member."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consensus.border import Hint, Leave
from consensus.messages import EvidenceKind
from consensus.protocol.state.change import Change, Finding, FindingKind, Moment
from consensus.protocol.state.history import FINDINGS, LIMIT, History
from consensus.protocol.state.inputs import Accusation
from consensus.simulation import Host, World
from consensus.view import Cause, Reason, View

from ..transcripts.script import agree, start_job
from .people import member, view_of


def record(host: Host, epoch: int = 2) -> dict[str, Any]:
    """What ``host`` tells of the change to ``epoch``, as it goes over the wire."""
    told = json.loads(json.dumps(host.machine.status()["history"]))
    [change] = [change for change in told if change["epoch"] == epoch]
    assert isinstance(change, dict)
    return change


def in_order(moments: dict[str, float], *names: str) -> bool:
    times = [moments[name] for name in names]
    return times == sorted(times)


def crash(world: World, members: list[Host], victim: Host) -> list[Host]:
    world.kill(victim)
    survivors = [host for host in members if host.alive]
    agree(world, survivors)
    return survivors


def test_founding() -> None:
    _, members = start_job(3)
    for host in members:
        change = record(host, 1)
        assert (change["cause"], change["size_before"], change["size"], change["driver"]) == ("founded", 0, 3, members[0].id)
        assert set(change["joined"]) == {each.id for each in members}
        assert host.machine.status()["view_changes"] == {"changes": {"founded": 1}, "removed": {}, "joined": 3}


def test_a_crash_at_the_driver() -> None:
    """Who found what is the driver's own knowledge, and so is who was last."""
    world, members = start_job(4)
    driver, victim = members[0], members[3]
    crash(world, members, victim)
    change = record(driver)
    [removed] = change["removed"]
    assert (removed["id"], removed["cause"], removed["detail"]) == (victim.id, "proof", "connection refused by its host")
    [finding] = change["findings"]
    assert (finding["kind"], finding["accused"], finding["after"]) == ("proof", victim.id, 0.0)
    assert removed["source"] == finding["source"]
    assert finding["source"] in {host.id for host in members[:3]}
    assert change["driver"] == driver.id
    assert change["ballot"] == [0, driver.id]
    assert set(change["quorum"]) <= {host.id for host in members[:3]}
    assert set(change["reports"]) == set(change["readies"]) == {host.id for host in members[:3]}
    moments = change["moments"]
    assert in_order(moments, "proposed", "asked", "flushed", "chosen", "sent", "installed", "ready", "complete", "activated")
    assert moments["sent"] == max(change["reports"].values())
    assert moments["complete"] == max(change["readies"].values())
    assert 0.0015 < change["phases"]["settle"] < 0.02, "it waits settle_quiet for more of its kind"
    parts = sum(duration for phase, duration in change["phases"].items() if phase != "total")
    assert abs(parts - change["phases"]["total"]) < 1e-5
    assert victim.id in change["names"]
    assert driver.machine.status()["view_changes"]["changes"] == {"founded": 1, "proof": 1}


def test_ballots_and_removals_are_counted() -> None:
    history, view = History(), view_of("abcd")
    history.adopt(view, "a", 100.0)
    for ballot in ((0, "a"), (1, "a")):
        history.proposed(ballot, 101.0)
    after = view_of("ab", 2, view.view_id)
    history.adopt(after, "a", 102.0)
    removed = tuple(Reason(key, Cause.PROOF) for key in "cd")
    history.installed("a", (1, "a"), removed, 103.0)
    history.activated(104.0)
    assert history.newest is not None and history.newest.attempts == 2
    assert history.removed == {"proof": 2}


def test_the_others_know_the_drivers_reasons() -> None:
    world, members = start_job(4)
    survivors = crash(world, members, members[3])
    told = [record(host)["removed"] for host in survivors]
    assert told[0] == told[1] == told[2]
    other = record(survivors[1])
    assert other["quorum"] == []
    assert "sent" not in other["moments"]
    assert in_order(other["moments"], "asked", "flushed", "chosen", "installed", "ready", "activated")


def test_others_evidence_names_its_source() -> None:
    """The coordinator has no connection to the victim: it knows by hearsay."""
    world, members = start_job(6)
    victim = members[5]
    witness = next(host for host in members[1:] if any(peer.id == victim.id for peer in host.liveness_connections))
    members[0].liveness_connections = tuple(peer for peer in members[0].liveness_connections if peer.id != victim.id)
    for host in members[1:]:
        if host is not witness:
            host.liveness_connections = tuple(peer for peer in host.liveness_connections if peer.id != victim.id)
    crash(world, members, victim)
    change = record(members[0])
    assert [(item["kind"], item["source"]) for item in change["findings"]] == [("proof", witness.id)]
    assert change["removed"][0]["source"] == witness.id
    assert record(members[2])["removed"][0]["source"] == witness.id, "told with the view"


def test_the_coordinator_crashes() -> None:
    world, members = start_job(4)
    survivors = crash(world, members, members[0])
    change = record(survivors[0])
    assert change["driver"] == survivors[0].id
    assert change["ballot"][0] > 0, "ballot 0 belonged to the dead"
    assert [reason["id"] for reason in change["removed"]] == [members[0].id]
    assert in_order(change["moments"], "proposed", "prepared", "sent", "complete", "activated")


def test_the_last_one_does_without_the_dead() -> None:
    world, members = start_job(2)
    crash(world, members, members[0])
    change = record(members[1])
    assert change["quorum"] == [members[1].id]
    assert change["discounted"] == [members[0].id]


def test_a_join() -> None:
    world, members = start_job(3)
    joiner = world.start("j", introducers=(members[1].name,))
    agree(world, [*members, joiner])
    change = record(members[0])
    assert (change["cause"], change["removed"], change["joined"]) == ("joined", [], [joiner.id])
    assert change["moments"]["wished"] < 0, "the wait for a call's end is not part of the change"
    assert in_order(change["moments"], "proposed", "sent", "complete", "activated")
    own = record(joiner)
    assert own["size_before"] == 0
    assert joiner.id in own["joined"]
    assert own["driver"] == members[0].id


def test_a_leave() -> None:
    world, members = start_job(3)
    world.inside(members[2], lambda: members[2].machine.handle(Leave(None), world.now))
    agree(world, members[:2])
    for host in members[:2]:
        [removed] = record(host)["removed"]
        assert (removed["id"], removed["cause"], removed["source"]) == (members[2].id, "left", members[2].id)


def test_silence_tells_who_suspected_first() -> None:
    world, members = start_job(4)
    world.pause(members[3])
    agree(world, members[:3])
    change = record(members[0])
    [removed] = change["removed"]
    assert removed["cause"] == "silence"
    assert removed["detail"].startswith("no answer for ")
    kinds = [item["kind"] for item in change["findings"]]
    assert kinds == ["suspect", "silence"]
    assert change["findings"][0]["after"] < 0 == change["findings"][1]["after"]


def test_a_fenced_member() -> None:
    world, members = start_job(4, fences=True)
    world.fences = True
    world.pause(members[3])
    agree(world, members[:3])
    change = record(next(host for host in members[:3] if any(i["kind"] == "fence" for i in record(host)["findings"])))
    assert [item["kind"] for item in change["findings"]] == ["suspect", "fence", "proof"]
    details = [record(host)["removed"][0]["detail"] for host in members[:3]]
    assert details[0].startswith("silent for ")
    assert ", fenced: " in details[0]
    assert details == [details[0]] * 3


def test_a_refuted_suspicion_leaves_no_trace() -> None:
    world, members = start_job(3)
    world.pause(members[2])
    world.run(1.0)
    world.resume(members[2])
    world.run(1.0)
    crash(world, members, members[2])
    assert [item["kind"] for item in record(members[0])["findings"]] == ["proof"]


def test_a_new_group_for_the_same_members() -> None:
    world, members = start_job(3)
    world.inside(members[1], lambda: members[1].machine.handle(Hint(()), world.now))
    world.run_until(lambda: all(host.activated[-1].epoch == 2 for host in members), 5.0)
    change = record(members[0])
    assert (change["cause"], change["removed"], change["joined"]) == ("rebuilt", [], [])
    assert [(item["kind"], item["accused"]) for item in change["findings"]] == [("frozen", members[1].id)]
    assert "halted" in record(members[1])["moments"]


def test_a_death_during_the_change_belongs_to_the_next() -> None:
    world, members = start_job(5)
    world.kill(members[4])
    world.run_until(lambda: any(host.machine.status()["epoch"] == 2 for host in members[:4]), 1.0)
    world.kill(members[3])
    agree(world, members[:3])
    assert [reason["id"] for reason in record(members[0], 2)["removed"]] == [members[4].id]
    assert [reason["id"] for reason in record(members[0], 3)["removed"]] == [members[3].id]
    assert [item["accused"] for item in record(members[0], 3)["findings"] if item["kind"] == "proof"] == [members[3].id]


def test_what_is_under_way_and_whom_it_waits_for() -> None:
    world, members = start_job(3)
    assert [host.machine.status()["under_way"] for host in members] == [None] * 3
    for host in members[1:]:
        world.pause(host)
    world.run(4.0)
    waiting = members[0].machine.status()["under_way"]
    assert waiting["epoch"] == 2
    assert {item["accused"] for item in waiting["findings"] if item["kind"] == "silence"} == {members[1].id, members[2].id}
    assert set(waiting["waits_for"]) == {members[1].id, members[2].id}
    assert waiting["text"].startswith("the next view waits for ")
    json.dumps(waiting)
    for host in members[1:]:
        world.resume(host)
    world.run(5.0)
    assert members[0].running
    assert all(host.machine.status()["under_way"] is None for host in members)


def test_it_is_bounded() -> None:
    history = History()
    view = View(1, "", (member("a"),))
    for epoch in range(1, LIMIT + 20):
        for number in range(FINDINGS + 5):
            history.found(FindingKind.PROOF, f"x{number}", "y" * 1000, "a", float(epoch))
        view = View(epoch, view.view_id if epoch > 1 else "", (member("a"),))
        history.adopt(view, "a", float(epoch))
    told = history.as_list()
    assert len(history) == len(told) == LIMIT
    assert told[-1]["epoch"] == LIMIT + 19
    assert len(told[-1]["findings"]) == FINDINGS
    assert len(told[-1]["findings"][0]["detail"]) == 200


def test_marks_of_older_epochs_are_late_words() -> None:
    history = History()
    first = View(1, "", (member("a"), member("b")))
    second = View(2, first.view_id, (member("a"),))
    history.adopt(first, "a", 1.0)
    history.adopt(second, "a", 2.0)
    history.mark(Moment.FLUSHED, 1, 3.0)
    history.mark(Moment.FLUSHED, 2, 4.0)
    history.mark(Moment.FLUSHED, 2, 5.0)
    history.mark(Moment.HALTED, 3, 6.0)
    assert [change["moments"].get("flushed") for change in history.as_list()] == [None, 2.0]
    assert history.as_list() == history.as_list()
    assert history.as_list()[1]["removed"] == [{"id": "b", "cause": None, "detail": "", "source": ""}]


def test_a_suspicion_alone_begins_no_change_and_a_proof_does() -> None:
    history, view = History(), view_of("abc")
    history.adopt(view, "a", 100.0)
    history.activated(100.1)
    history.found(FindingKind.SUSPECT, "c", "does not answer", "b", 101.0)
    assert history.under_way() is None
    history.found(FindingKind.PROOF, "c", "refused", "a", 101.5)
    told = history.under_way()
    assert told is not None and (told["epoch"], told["at"]) == (2, 101.5)


@pytest.mark.parametrize(("driver", "ballot"), [("b", [1, "b"]), ("a", None)])
def test_a_ballot_is_of_the_change_that_it_decided(driver: str, ballot: list[object] | None) -> None:
    """As long as no INSTALL tells which one did: none of this member's, if another member drives."""
    history, view = History(), view_of("abc")
    history.adopt(view, "a", 100.0)
    history.proposed((1, "b"), 101.0)
    history.adopt(view_of("ab", 2, view.view_id), driver, 102.0)
    assert history.newest_as_dict()["ballot"] == ballot


def test_older_changes_are_put_together_once_and_the_newest_as_it_grows() -> None:
    """People may ask every second, and of dozens of changes only the newest can be another than before."""
    history, view = History(), view_of("abc")
    history.adopt(view, "a", 100.0)
    history.adopt(view_of("ab", 2, view.view_id), "a", 101.0)
    older, newest = history.as_list()
    history.activated(102.0)
    again = history.as_list()
    assert again[0] == older and again[0]["moments"] is older["moments"]
    assert "activated" in again[1]["moments"] and "activated" not in newest["moments"]
    again[0]["more"] = True
    assert "more" not in history.as_list()[0]


def test_seconds_of_phases_are_told_to_the_microsecond() -> None:
    parent = view_of("abc")
    moments = {Moment.ASKED: 100.0, Moment.INSTALLED: 100.0 + 1 / 3, Moment.READY: 100.0 + 2 / 3}
    phases = Change(parent, view_of("ab", 2, parent.view_id), "a", moments=moments).phases
    assert phases == {"settle": 0.0, "freeze": 0.333333, "build": 0.333333, "total": 0.666667}


def test_a_lie_of_length_is_cut() -> None:
    """Details come from other members: what is kept of them is bounded."""
    world, members = start_job(3)
    detail = "x" * 5000
    accuse = lambda: members[1].machine.handle(Accusation(members[2].id, EvidenceKind.PROOF, detail), world.now)  # noqa: E731
    world.inside(members[1], accuse)
    world.kill(members[2])
    agree(world, members[:2])
    assert len(record(members[0])["removed"][0]["detail"]) <= 96


def test_who_told_the_driver_of_a_death_is_named_where_only_the_reasons_came() -> None:
    parent = view_of("abc")
    reasons = (Reason("c", Cause.PROOF, "refused", "b"),)
    change = Change(parent, view_of("ab", 2, parent.view_id, parent.cluster), "a", reasons=reasons)
    assert set(change.sketch()["names"]) == {"a", "b", "c"}


def test_who_is_spoken_of_is_named_though_nothing_is_chosen_yet() -> None:
    finding = Finding(FindingKind.SUSPECT, "c", "does not answer", "b", 101.0)
    change = Change(view_of("abcd"), findings={("c", FindingKind.SUSPECT): finding})
    assert set(change.sketch()["names"]) == {"b", "c"}


def test_what_led_to_a_change_goes_with_it_and_what_holds_of_those_who_stay_leads_to_the_next() -> None:
    """Also where no INSTALL has told the reasons: then this member's own findings are shown, and who said so."""
    history, view = History(), view_of("abcd")
    history.adopt(view, "a", 100.0)
    history.activated(100.1)
    for accused in "cd":
        history.found(FindingKind.PROOF, accused, "refused", "b", 101.0)
    second = view_of("abc", 2, view.view_id, view.cluster)
    history.adopt(second, "a", 102.0)
    history.activated(102.1)
    told = history.newest_as_dict()
    assert told["removed"] == [{"id": "d", "cause": "proof", "detail": "refused", "source": "b"}]
    assert [each["accused"] for each in told["findings"]] == ["d"], "c is still in"
    under_way = history.under_way()
    assert under_way is not None and under_way["epoch"] == 3
    assert [(each["kind"], each["accused"]) for each in under_way["findings"]] == [("proof", "c")]


def test_a_link_that_works_again_is_no_reason_for_a_change_and_other_findings_are() -> None:
    history, view = History(), view_of("abcd")
    history.adopt(view, "a", 100.0)
    history.activated(100.1)
    history.found(FindingKind.SEVERED, "b", "no direct answer", "c", 101.0)
    assert history.under_way() is not None
    history.mended()
    assert history.under_way() is None
    for kind, accused in ((FindingKind.SEVERED, "c"), (FindingKind.UNREADY, "d")):
        history.found(kind, accused, "", "a", 102.0)
    history.mended()
    under_way = history.under_way()
    assert under_way is not None and [each["kind"] for each in under_way["findings"]] == ["unready"]


def test_a_boundary_request_that_was_taken_back_is_no_step_of_a_later_change() -> None:
    history, view = History(), view_of("abc")
    history.adopt(view, "a", 100.0)
    history.mark(Moment.BOUNDARY_REQUESTED, 2, 101.0)
    history.unmark(Moment.BOUNDARY_REQUESTED)
    history.adopt(view_of("ab", 2, view.view_id, view.cluster), "a", 200.0)
    assert "wished" not in history.newest_as_dict()["moments"]


def test_steps_before_the_first_view_belong_to_it() -> None:
    history = History()
    history.mark(Moment.FLUSHED, 1, 99.5)
    history.adopt(view_of("abc"), "a", 100.0)
    assert "flushed" in history.newest_as_dict()["moments"]


def test_when_a_change_began_is_told_to_the_microsecond_and_who_is_named_by_its_address() -> None:
    parent = view_of("abc")
    change = Change(parent, view_of("ab", 2, parent.view_id), "a", moments={Moment.ASKED: 100.0 + 1 / 3})
    told = change.sketch()
    assert told["at"] == 100.333333
    assert told["names"]["a"] == {"name": None, "address": "10.0.0.1:1097"}
