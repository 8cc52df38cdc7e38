from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus import Member, View
from ftlib.core.calls.salvage import DISPUTES, NAMED, REPORT_LIMIT, FaultKind, Report, SalvagePlan, blame, plan


def members(ids: list[str]) -> tuple[Member, ...]:
    return tuple(Member(name, "127.0.0.1", 1000 + i) for i, name in enumerate(ids))


def view(ids: list[str], epoch: int = 2) -> View:
    return View(epoch, "parent" if epoch > 1 else "", members(ids))


def report(finished: int, *, current: int = 0, last: bytes = b"x", now: bytes = b"x", **other: object) -> Report:
    values = {"step": finished, "state_id": "a", "founder": True, "blank": False, "has_state": True, **other}
    return Report(finished, current, last_signature=last, current_signature=now if current else b"", **values)  # type: ignore[arg-type]


def planned(reports: dict[str, Report], ids: list[str] | None = None) -> SalvagePlan:
    return plan(view(ids or list(reports)), {name: found.encode() for name, found in reports.items()})


@st.composite
def consistent(draw: st.DrawFn) -> tuple[list[str], dict[str, Report]]:
    """Reports as the protocol can produce them: counts differ by at most one, and who is behind is in the call."""
    ids = [f"m{i}" for i in range(draw(st.integers(1, 7)))]
    call = draw(st.integers(1, 1000))
    joiners = draw(st.integers(0, len(ids) - 1))
    reports = {}
    for index, name in enumerate(ids):
        if index >= len(ids) - joiners:
            if draw(st.booleans()):
                granted = draw(st.integers(0, call))
                reports[name] = report(granted, blank=True, founder=False, state_id=draw(st.sampled_from(["", "m0"])))
            continue
        behind = draw(st.booleans())
        current = call if behind else draw(st.sampled_from([0, call + 1]))
        finished = call - 1 if behind else call
        reports[name] = report(finished, current=current, state_id=draw(st.sampled_from(["", "m0"])))
        if behind:
            reports[name] = report(finished, current=current, last=b"w", state_id=reports[name].state_id)
    return ids, reports


@given(consistent(), st.randoms())
@settings(max_examples=300)
def test_plan_is_alike_complete_and_never_mixes(case: tuple[list[str], dict[str, Report]], rng: object) -> None:
    ids, reports = case
    encoded = [(name, found.encode()) for name, found in reports.items()]
    chosen = plan(view(ids), dict(encoded))
    rng.shuffle(encoded)  # type: ignore[attr-defined]
    assert plan(view(ids), dict(encoded)) == chosen
    assert chosen.fault is None
    acted = {name: found for name, found in reports.items() if not found.blank}
    assert chosen.call == max(found.finished for found in acted.values())
    adopters = {adopter for adopter, _ in chosen.adoptions}
    assert adopters == {name for name, found in acted.items() if found.finished == chosen.call - 1}
    assert set(chosen.blank) == set(ids) - set(acted)
    for adopter, donor in chosen.adoptions:
        assert acted[donor].finished == chosen.call
        assert chosen.donor_of(adopter) == donor
        assert adopter in chosen.adopters_of(donor)
    assert chosen.holders
    assert chosen.current_state_id
    counts = [sum(1 for _, donor in chosen.adoptions if donor == name) for name in acted]
    assert (
        max(counts) - min(count for name, count in zip(acted, counts, strict=True) if acted[name].finished == chosen.call) <= 1
    )


@st.composite
def uneven(draw: st.DrawFn) -> tuple[list[str], dict[str, Report], list[str], list[str]]:
    """The same beside members that lag, by two calls and more, and joiners that follow: their ids come last."""
    ids, reports = draw(consistent())
    newest = max(found.finished for found in reports.values() if not found.blank)
    lagging = [f"l{i}" for i in range(draw(st.integers(0, 3) if newest >= 2 else st.just(0)))]
    for name in lagging:
        finished = draw(st.integers(0, newest - 2))
        current = draw(st.sampled_from([0, finished + 1]))
        state_id, founder = draw(st.sampled_from(["", "m0", name])), draw(st.booleans())
        reports[name] = report(finished, current=current, last=b"o", now=b"o", state_id=state_id, founder=founder)
    following = [f"f{i}" for i in range(draw(st.integers(0, 3)))]
    for name in following:
        behind = draw(st.booleans()) and newest > 0
        current = newest if behind else draw(st.sampled_from([0, newest + 1]))
        known = next(found.last_signature for found in reports.values() if not found.blank and found.finished == newest)
        last = b"o" if behind else known
        reports[name] = report(newest - behind, current=current, last=last, now=b"", step=0, state_id="", founder=False)
    return draw(st.permutations([*ids, *lagging, *following])), reports, lagging, following


@given(uneven(), st.randoms())
@settings(max_examples=300)
def test_who_lags_is_healed_and_who_follows_has_no_state(
    case: tuple[list[str], dict[str, Report], list[str], list[str]], rng: object
) -> None:
    ids, reports, lagging, following = case
    encoded = [(name, found.encode()) for name, found in reports.items()]
    chosen = plan(view(ids), dict(encoded))
    rng.shuffle(encoded)  # type: ignore[attr-defined]
    assert plan(view(ids), dict(encoded)) == chosen
    assert chosen.fault is None
    acted = {name: found for name, found in reports.items() if not found.blank and name not in lagging}
    assert chosen.call == max(found.finished for found in acted.values())
    assert chosen.healed == tuple(name for name in ids if name in lagging)
    assert chosen.blank == tuple(name for name in ids if name not in acted)
    assert {adopter for adopter, _ in chosen.adoptions} == {n for n, found in acted.items() if found.finished < chosen.call}
    assert all(acted[donor].finished == chosen.call for _, donor in chosen.adoptions)
    assert chosen.holders
    assert not {*chosen.holders} & {*lagging, *following}
    if any(acted[name].finished == chosen.call for name in chosen.holders):
        assert chosen.step == chosen.call, "as those count who hold the state"


@given(
    st.builds(
        Report,
        st.integers(0, 2**60),
        st.integers(0, 2**60),
        st.integers(0, 2**60),
        st.binary(max_size=16),
        st.binary(max_size=16),
        st.text(max_size=32),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )
)
def test_reports_survive_the_wire(found: Report) -> None:
    assert len(found.encode()) <= REPORT_LIMIT
    assert Report.decode(found.encode()) == found


@given(st.binary(max_size=80))
def test_nonsense_is_no_report(data: bytes) -> None:
    with pytest.raises(ValueError, match="report"):
        Report.decode(data)


def test_a_report_that_blames_many_fits_and_one_that_blames_strangely_is_none() -> None:
    ids = tuple(f"{number:016x}" for number in range(NAMED))
    for dispute in DISPUTES:
        found = Report(
            *(2**60,) * 3, b"x" * 16, b"y" * 16, "o" * 16, *(True,) * 4, b"d" * 36, newcomer=True, blamed=ids, dispute=dispute
        )
        assert len(found.encode()) <= REPORT_LIMIT
        assert Report.decode(found.encode()) == found
    for strange in ({"blamed": (1,), "dispute": "samples"}, {"blamed": ("a",), "dispute": "colour"}):
        with pytest.raises(ValueError, match="flush report"):
            Report.decode(report(7, **strange).encode())


def test_a_report_may_be_as_long_as_the_limit_says() -> None:
    empty = report(1, drawn=b"x" * 300)
    full = report(1, drawn=b"x" * (300 + REPORT_LIMIT - len(empty.encode())))
    assert len(full.encode()) == REPORT_LIMIT and Report.decode(full.encode()) == full
    with pytest.raises(ValueError, match=f"at most {REPORT_LIMIT}"):
        Report.decode(full.encode() + b"x")


def test_founding_starts_from_the_most_senior_members_state() -> None:
    chosen = plan(view(["a", "b"], epoch=1), {})
    assert chosen == SalvagePlan(0, 0, current_state_id="a", holders=("a",))


def test_more_than_one_call_apart_heals_those_behind() -> None:
    chosen = planned({"a": report(5), "b": report(7), "c": report(6, current=7)})
    assert chosen.fault is None
    assert (chosen.call, chosen.healed, chosen.blank) == (7, ("a",), ("a",))
    assert (chosen.current_state_id, chosen.holders, chosen.adoptions) == ("a", ("b", "c"), (("c", "b"),))


def test_without_registered_state_it_stops_them() -> None:
    reports = {"a": report(7), "b": report(5, has_state=False), "c": report(4)}
    chosen = planned(reports)
    assert chosen.fault is not None
    assert chosen.fault.kind is FaultKind.MISMATCH
    assert chosen.fault.blamed == ("b",)
    assert "register_state" in chosen.fault.text
    assert chosen.healed == ("c",)


def test_where_all_holders_lag_the_state_is_lost() -> None:
    following = report(9, state_id="", founder=False, now=b"")
    for odd in (following, report(9, state_id="", founder=False, has_state=False)):
        chosen = planned({"a": report(5), "b": odd})
        assert chosen.healed == ("a",)
        assert chosen.fault is not None
        assert chosen.fault.kind is FaultKind.STATE_LOST


def learner(finished: int, *, current: int = 0, last: bytes = b"x") -> Report:
    return report(finished, current=current, last=last, now=b"", step=0, state_id="", founder=False)


def test_who_follows_is_not_blamed_for_what_it_does_not_know() -> None:
    entered = planned({"f": learner(7, current=8), "a": report(7, current=8), "b": report(7, current=8)})
    assert entered.fault is None
    assert (entered.step, entered.signature) == (7, b"x")
    adopts = planned({"f": learner(6, current=7, last=b"w"), "a": report(7)})
    assert (adopts.fault, adopts.adoptions) == (None, (("f", "a"),))
    gives = planned({"f": learner(7), "a": report(6, current=7, last=b"w")})
    assert (gives.fault, gives.adoptions, gives.holders, gives.signature) == (None, (("a", "f"),), ("a",), b"x")


def test_beside_who_follows_those_who_differ_are_named() -> None:
    entering = {"f": learner(7, current=8), "a": report(7, current=8), "b": report(7, current=8, now=b"y")}
    entered = planned({**entering, "c": report(7, current=8)}).fault
    assert entered is not None
    assert entered.blamed == ("b",)
    behind = planned({"f": learner(7), "b": report(6, current=7, now=b"y")}).fault
    assert behind is not None
    assert behind.blamed == ("b",)


def test_who_follows_cannot_go_on_without_those_who_hold_the_state() -> None:
    fault = planned({"f": learner(7), "g": learner(6, current=7)}, ["f", "g", "j"]).fault
    assert fault is not None
    assert fault.kind is FaultKind.STATE_LOST
    assert fault.blamed == ("f", "g", "j")


@st.composite
def without_state(draw: st.DrawFn) -> dict[str, Report]:
    """Reports of those who were let in and follow, and of joiners that have done nothing yet: none of them has the state."""
    call, reports = draw(st.integers(1, 1000)), {}
    for index in range(draw(st.integers(1, 5))):
        finished = call - draw(st.integers(0, min(1, call - 1)))
        reports[f"f{index}"] = learner(finished, current=draw(st.sampled_from([0, finished + 1])))
    for index in range(draw(st.integers(0, 2))):
        reports[f"j{index}"] = report(draw(st.integers(0, call)), blank=True, founder=False, state_id="")
    return reports


@given(without_state())
def test_who_follows_never_goes_on_alone(reports: dict[str, Report]) -> None:
    """Else it would make call after call by itself, and wait in each for a state that nobody has."""
    fault = planned(reports).fault
    assert fault is not None and fault.kind is FaultKind.STATE_LOST
    assert set(fault.blamed) == set(reports)


def test_who_follows_goes_on_with_a_joiner_that_has_loaded() -> None:
    loaded = report(7, blank=True, founder=False, state_id="a", step=6)
    chosen = planned({"f": learner(7, current=8), "j": loaded})
    assert chosen.fault is None
    assert (chosen.call, chosen.step, chosen.holders, chosen.blank) == (7, 6, ("j",), ("j",))
    too_old = planned({"f": learner(8), "j": loaded})
    assert too_old.fault is not None
    assert too_old.fault.kind is FaultKind.STATE_LOST


def test_who_entered_the_call_with_something_else_is_named() -> None:
    reports = {"a": report(7, current=8), "b": report(7, current=8, now=b"y"), "c": report(7, current=8)}
    chosen = planned(reports)
    assert chosen.fault is not None
    assert chosen.fault.blamed == ("b",)
    assert "call 8" in chosen.fault.text
    behind = planned({"a": report(8, last=b"x"), "b": report(7, current=8, now=b"y")})
    assert behind.fault is not None
    assert behind.fault.blamed == ("b",)


def test_who_was_found_to_differ_stops_also_if_it_has_not_seen_so() -> None:
    found = {"blamed": ("b", "gone"), "dispute": "samples"}
    reports = {"a": report(7, current=8, **found), "b": report(7, current=8), "c": report(7, current=8)}
    fault = planned(reports).fault
    assert fault is not None and fault.kind is FaultKind.MISMATCH
    assert fault.blamed == ("b",)
    assert "who draws which samples" in fault.text and "set_epoch" in fault.text
    assert planned({"a": report(7, current=8, **found), "c": report(7, current=8)}).fault is None  # it has left meanwhile


def test_blame() -> None:
    assert blame({"a": b"1", "b": b"1"}) == ()
    assert blame({"a": b"1", "b": b"2"}) == ("a", "b")
    assert blame({"a": b"1", "b": b"2"}, newcomers=["b"]) == ("b",)
    assert blame({"a": b"1", "b": b"2", "c": b"2"}) == ("a",)
    assert blame({"a": b"1", "b": b"2", "c": b"2"}, newcomers=["b", "c"]) == ("b", "c")
    assert blame({"a": b"1", "b": b"2", "c": b"3"}) == ("a", "b", "c")


def test_state_goes_on_with_whoever_holds_it() -> None:
    assert planned({"b": report(3, state_id="a"), "c": report(3, state_id="")}).holders == ("b",)
    nobody = planned({"b": report(3, state_id=""), "c": report(3, state_id="")})
    assert (nobody.current_state_id, nobody.holders) == ("b", ("b",))
    joiners = {"b": report(3, state_id="", founder=False), "c": report(3, state_id="", founder=False)}
    fault = planned(joiners).fault
    assert fault is not None
    assert fault.kind is FaultKind.STATE_LOST


def test_a_joiner_that_has_loaded_can_go_on_alone() -> None:
    loaded = report(9, blank=True, founder=False, state_id="a")
    chosen = planned({"j": loaded, "k": report(9, blank=True, founder=False, state_id="")}, ["j", "k", "l"])
    assert chosen.fault is None
    assert (chosen.call, chosen.holders, chosen.blank) == (9, ("j",), ("j", "k", "l"))
    lost = planned({"j": report(9, blank=True, founder=False, state_id="")}, ["j"])
    assert lost.fault is not None
    assert lost.fault.kind is FaultKind.STATE_LOST


def test_joiners_without_registered_state_go_on() -> None:
    chosen = planned({"j": report(9, blank=True, founder=False, state_id="", has_state=False)}, ["j", "k"])
    assert chosen.fault is None
    assert (chosen.call, chosen.current_state_id) == (9, "")


def test_what_a_joiner_has_drawn_counts_if_it_has_the_state_as_of_now() -> None:
    old, new = (report(granted, blank=True, founder=False, state_id="a", drawn=b"j") for granted in (6, 7))
    veteran = report(7, state_id="a", drawn=b"a")
    assert planned({"a": veteran, "j": new}).drawn == (("a", b"a"), ("j", b"j"))
    assert planned({"a": veteran, "j": old}).drawn == (("a", b"a"),)


def test_joiners_that_loaded_go_on_from_the_newest_state_among_them() -> None:
    """Whoever loaded an older one counts as they do, and gets theirs; so does one that loaded nothing."""
    old = report(3, blank=True, founder=False, state_id="a")
    new, none = report(5, blank=True, founder=False, state_id="a"), report(9, blank=True, founder=False, state_id="")
    for order in (["o", "n", "x"], ["x", "n", "o"], ["n", "o", "x"]):
        found = planned({name: {"o": old, "n": new, "x": none}[name] for name in order})
        assert found.fault is None
        assert (found.call, found.holders) == (5, ("n",)), order
        assert found.blank == tuple(order), "none of them has a result"


def test_joiners_that_registered_state_and_have_none_cannot_go_on() -> None:
    """One is enough that did."""
    bare = report(4, blank=True, founder=False, state_id="", has_state=False)
    registered = report(4, blank=True, founder=False, state_id="")
    for reports in ({"b": bare, "r": registered}, {"r": registered, "b": bare}, {"r": registered}):
        fault = planned(reports).fault
        assert fault is not None and fault.kind is FaultKind.STATE_LOST
        assert set(fault.blamed) == set(reports)


def test_joiners_without_registered_state_go_on_from_the_newest_count() -> None:
    bare = {
        name: report(count, blank=True, founder=False, state_id="", has_state=False)
        for name, count in zip("bcd", (4, 6, 5), strict=True)
    }
    found = planned(bare)
    assert found.fault is None
    assert found.call == 6


def test_who_is_late_gives_the_state_only_if_nobody_else_can() -> None:
    late, there = report(5, late=True), report(5)
    assert planned({"a": late, "b": there, "c": late}).holders == ("b",)
    assert planned({"a": late, "c": late}).holders == ("a", "c")


def test_the_state_is_lost_also_where_only_some_had_registered_it() -> None:
    none, some = learner(5), replace(learner(5), has_state=False)
    for reports in ({"b": none, "c": some}, {"c": some, "b": none}):
        fault = planned(reports).fault
        assert fault is not None and fault.kind is FaultKind.STATE_LOST


def test_who_finished_a_call_with_something_else_stops_with_all_who_did() -> None:
    """Nobody can say who is right: they have applied different things."""
    fault = planned({"a": report(5), "b": report(5, last=b"y"), "c": report(4, current=5)}).fault
    assert fault is not None and fault.kind is FaultKind.MISMATCH
    assert fault.blamed == ("a", "b")


@pytest.mark.parametrize("field", ["finished", "current", "step"])
def test_no_count_of_a_report_is_negative(field: str) -> None:
    with pytest.raises(ValueError, match="negative"):
        Report.decode(replace(report(5, current=6), **{field: -1}).encode())  # type: ignore[arg-type]


def test_a_report_has_as_many_fields_as_it_should_and_each_of_its_kind() -> None:
    version, *values = msgpack.unpackb(report(5).encode(), use_list=False)
    for wrong in (values[:-1], [*values, 1], ["5", *values[1:]], [*values[:-1], 7]):
        with pytest.raises(ValueError, match="shape"):
            Report.decode(msgpack.packb((version, *wrong)))


def test_a_call_that_all_were_in_is_expected_again() -> None:
    """Then it can begin at once; else nobody knows what the others do first, or there are some who do not know that call."""
    both = {"a": report(7, current=8), "b": report(7, current=8)}
    assert planned(both).entered == b"x"
    assert planned(both, ["a", "b", "new"]).entered == b""
    for other in (
        report(7),  # outside of calls
        report(6, current=7, last=b"w"),  # it adopts a call first
        report(7, current=8, now=b""),  # it does not know the call, as it declines it, or its program may yet give it up
        report(7, current=8, newcomer=True),
        report(7, current=8, blank=True),
        report(4, current=5, last=b"w"),  # healed
        report(7, current=8, now=b"y"),
    ):
        assert planned({**both, "c": other}).entered == b"", other
