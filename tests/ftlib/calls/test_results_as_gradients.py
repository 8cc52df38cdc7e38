"""Results that the program sees as its gradients: what becomes a view, what a change does, and who can give them on."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftlib.core.calls import adoption
from ftlib.core.calls.adoption import Spoilt, donate
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.calls.salvage import REPORT_LIMIT, FaultKind, Report
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import lay_out_in_order
from ftlib.core.tensors.presentation import joined, present
from ftlib.core.tensors.staging import Slot, Staging
from tests.ftlib.calls.test_salvage import planned, report

SPECS = [(torch.float32, (5, 50)), (torch.float32, (7,)), (torch.float64, (3,)), (torch.bfloat16, (4,))]
LAYOUT = lay_out_in_order("average", SPECS, [3, 2, 1, 0], 400, 400)


def finished(number: int = 1) -> tuple[list[Slot], Results]:
    """Tensor ``i`` has the average ``i + 1`` everywhere."""
    staging = Staging(LAYOUT, 2)
    slots = [staging.slot(number, 0) for number in range(len(LAYOUT.buckets))]
    for slot in slots:
        for piece, view in zip(slot.bucket.pieces, slot.views, strict=True):
            view.fill_(piece.index + 1.0)
    view_id = hashlib.blake2b(b"a view", digest_size=8).hexdigest()
    results = Results(number, LAYOUT, slots, 2.0, assumed=2.0, view_id=view_id)
    return slots, results


def parameters() -> list[torch.Tensor]:
    made: list[torch.Tensor] = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for dtype, shape in SPECS]
    for owner in made:
        owner.grad = torch.full_like(owner, 9.0, requires_grad=False)
    return made


def shown() -> tuple[list[torch.Tensor], Results]:
    owners = parameters()
    _, results = finished()
    call = Call(Kind.AVERAGE, LAYOUT, [owner.grad for owner in owners], owners=owners, divide=True, views=True)
    call.deliver(results, views=True)
    return owners, results


def test_gradients_are_views_where_they_can_be_and_have_the_averages_everywhere() -> None:
    owners = parameters()
    slots, results = finished()
    copied: list[int] = []

    def copy(piece: Any, view: torch.Tensor) -> None:
        copied.append(piece.index)

    present(results, owners, copy)
    assert copied == [3], "bfloat16 is added up in float32"
    memory = {slot.host.untyped_storage().data_ptr() for slot in slots}
    assert all(owner.grad is not None and owner.grad.untyped_storage().data_ptr() in memory for owner in owners[:3])


def test_every_gradient_has_its_average() -> None:
    owners, _ = shown()
    for index, owner in enumerate(owners):
        assert owner.grad is not None
        assert torch.equal(owner.grad, torch.full_like(owner.grad, index + 1.0))


@pytest.mark.parametrize("index", range(3))
def test_a_change_in_place_is_noticed(index: int) -> None:
    owners, results = shown()
    assert not results.changed
    gradient = owners[index].grad
    assert gradient is not None
    gradient.flatten()[-1:].mul_(0.5)
    assert results.changed


def test_what_was_copied_or_replaced_is_no_change() -> None:
    owners, results = shown()
    assert owners[3].grad is not None
    owners[3].grad.mul_(0.5)
    owners[0].grad = None
    owners[1].grad = torch.zeros(7)
    assert not results.changed


def test_parts_that_are_not_side_by_side_are_no_view() -> None:
    owner = torch.nn.Parameter(torch.zeros(5, 50))
    parts, others = (
        [slot for slot in finished()[0] if slot.bucket.pieces and slot.bucket.pieces[0].index == 0] for _ in range(2)
    )
    whole = joined(parts, owner)
    assert whole is not None
    assert whole.shape == (5, 50)
    assert joined([parts[0], parts[2]], owner) is None
    assert joined([parts[0], *others[1:]], owner) is None
    assert joined(parts, torch.zeros(5, 50)) is None, "no parameter"
    assert joined(parts, torch.nn.Parameter(torch.zeros(5, 50, dtype=torch.float64))) is None
    assert joined(parts, torch.nn.Parameter(torch.zeros(50, 5).t())) is None


class Group:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def send(self, tensor: torch.Tensor, _rank: int, _tag: int) -> None:
        self.sent.append(tensor)


def test_a_donor_gives_what_it_had_and_nothing_that_was_changed() -> None:
    owners, results = shown()
    group: Any = Group()
    donate(group, 1, results)
    rows = [tensor.clone() for tensor in group.sent]
    assert owners[1].grad is not None
    owners[1].grad.mul_(0.5)
    assert all(torch.equal(row, sent) for row, sent in zip(rows, group.sent, strict=True)), "a change while it is sent"
    with pytest.raises(Spoilt, match="call 1"):
        donate(group, 1, results)
    assert len(group.sent) == len(rows)


@pytest.mark.parametrize("moment", ["_digest", "same"])
def test_a_result_that_is_first_seen_while_it_is_given_is_given_unchanged(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild thread gives it; the training thread has just finished the call, and its program halves what it gets."""
    owners, (slots, results) = parameters(), finished()
    whole = [slot.data.clone() for slot in slots if slot.bucket.count]
    call = Call(Kind.AVERAGE, LAYOUT, [owner.grad for owner in owners], owners=owners, divide=True, views=True)
    owner = adoption if moment == "_digest" else Results
    before = getattr(owner, moment)

    def then(*given: Any) -> Any:
        call.deliver(results, views=True)
        for each in owners:
            assert each.grad is not None
            each.grad.mul_(0.5)
        return before(*given)

    monkeypatch.setattr(owner, moment, then)
    group: Any = Group()
    if moment == "same":
        with pytest.raises(Spoilt):
            donate(group, 1, results)
        assert not group.sent
        return
    donate(group, 1, results)
    assert all(torch.equal(row, sent) for row, sent in zip(whole, group.sent[2:], strict=True))


@pytest.mark.parametrize("changes", [True, False])
def test_a_report_says_so(changes: bool) -> None:
    owners, results = shown()
    plane = Plane("a")
    plane.results = results
    if changes:
        assert owners[2].grad is not None
        owners[2].grad.zero_()
    assert plane._report(None).spoilt is changes
    plane.forget()
    assert not plane._report(None).spoilt


@given(st.booleans(), st.booleans(), st.integers(0, 1 << 40))
def test_reports_with_it_survive_the_wire(spoilt: bool, newcomer: bool, number: int) -> None:
    found = report(number, spoilt=spoilt, newcomer=newcomer)
    data = found.encode()
    assert Report.decode(data) == found
    assert len(data) <= REPORT_LIMIT


# --- the plan -----------------------------------------------------------------------------------------------------------


def behind(**other: object) -> Report:
    return report(7, current=8, **other)  # type: ignore[arg-type]


def test_the_one_donor_that_has_left_it_alone_gives_it_to_all() -> None:
    found = planned({"a": report(8, spoilt=True), "b": behind(), "c": report(8), "d": behind(), "e": report(8, spoilt=True)})
    assert found.adoptions == (("b", "c"), ("d", "c"))
    assert not found.healed
    assert found.fault is None


def test_where_nobody_can_give_it_those_behind_get_the_state() -> None:
    found = planned({"a": report(8, spoilt=True), "b": behind(), "c": report(8, spoilt=True), "d": behind()})
    assert found.call == 8
    assert not found.adoptions
    assert found.healed == ("b", "d")
    assert set(found.healed) <= set(found.blank) & set(found.newcomers)
    assert found.holders == ("a", "c")
    assert found.fault is None


def test_where_all_have_it_a_change_matters_to_nobody() -> None:
    found = planned({"a": report(8, spoilt=True), "b": report(8, current=9, spoilt=True)})
    assert not found.healed
    assert not found.adoptions
    assert found.fault is None


def test_without_registered_state_those_behind_stop_and_are_told_why() -> None:
    found = planned({"a": report(8, spoilt=True, has_state=False), "b": behind(has_state=False)})
    assert found.fault is not None
    assert found.fault.kind is FaultKind.MISMATCH
    assert found.fault.blamed == ("b",)
    assert "changed its result in place" in found.fault.text


def test_a_result_that_only_a_dead_member_had_is_redone() -> None:
    found = planned({"b": behind(), "c": behind(spoilt=True)}, ["b", "c"])
    assert found.call == 7
    assert not found.healed
    assert not found.adoptions


@given(st.lists(st.sampled_from(["intact", "spoilt", "behind"]), min_size=1, max_size=8))
def test_everybody_behind_adopts_or_gets_the_state(members: list[str]) -> None:
    reports = {
        f"m{number}": behind() if kind == "behind" else report(8, spoilt=kind == "spoilt")
        for number, kind in enumerate(members)
    }
    found = planned(reports)
    assert found.fault is None
    late = [name for name, kind in zip(reports, members, strict=True) if kind == "behind"]
    if "intact" in members:
        assert [adopter for adopter, _ in found.adoptions] == late
        assert all(members[int(donor[1:])] == "intact" for _, donor in found.adoptions)
        assert not found.healed
    elif "spoilt" in members:
        assert list(found.healed) == late
    else:
        assert found.call == 7
        assert not found.healed
