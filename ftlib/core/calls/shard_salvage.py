"""The plan of a view whose replicas have several processes: each shard's own, made to fit each other. Pure.

``salvage.plan`` is for one group. Here each shard has a group, and ``plan_shards`` says what all of them have in common: which
call was the last, who keeps a result that it only held, and which replicas get the state. That is written into the reports, as
if each member had said it, and then each shard's plan follows from its own members' reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from consensus import View

from ..replicas.agreement import ShardPlan, ShardReport, plan_shards
from ..replicas.whole import Replica, shard_view, whole_replicas
from .salvage import Fault, FaultKind, Report, SalvagePlan, planned


def plan_across(view: View, reports: Mapping[str, bytes], shard: int) -> SalvagePlan:
    """The plan for the members of ``shard`` in ``view``. ``reports``: those of the continuing members."""
    replicas = whole_replicas(view.members)
    if not replicas:
        text = "no replica is whole any more: start anew, from a checkpoint if there is one"
        return SalvagePlan(0, 0, blank=view.ids, newcomers=view.ids, fault=Fault(FaultKind.STATE_LOST, view.ids, text))
    known = {member_id: Report.decode(data) for member_id, data in reports.items() if member_id in view}
    common = plan_shards([each.ids for each in replicas], {key: _seen(report) for key, report in known.items()})
    if common.lost and view.parent_id and any(known[key].has_state for each in replicas for key in each.ids if key in known):
        text = "no whole replica has the trained state: start anew, from a checkpoint if there is one"
        return SalvagePlan(0, 0, blank=view.ids, newcomers=view.ids, fault=Fault(FaultKind.STATE_LOST, view.ids, text))
    plans = [_plan(view, known, common, replicas, number) for number in range(len(replicas[0].members))]
    chosen = replace(plans[shard], drawn=_drawn(replicas, plans))
    fault = next((each.fault for each in plans if each.fault is not None), None) or _left_behind(common, known)
    if fault is None:
        return chosen
    blamed = tuple(key for each in replicas if set(each.ids) & set(fault.blamed) for key in each.ids)
    return replace(chosen, fault=replace(fault, blamed=blamed))


def _drawn(replicas: Sequence[Replica], plans: Sequence[SalvagePlan]) -> tuple[tuple[str, bytes], ...]:
    """What the processes of each replica have drawn, under its name: all shards deal the samples in the same way."""
    reports = {key: data for each in plans for key, data in each.drawn}
    return tuple((each.name, reports[key]) for each in replicas for key in each.ids if key in reports)


def _left_behind(common: ShardPlan, known: Mapping[str, Report]) -> Fault | None:
    """A fault of members that would have to get the state, as their replica does, and have registered none."""
    left = tuple(m for m in common.blank if m in known and not known[m].blank and not known[m].has_state)
    if not left:
        return None
    text = (
        f"{', '.join(left)} did not finish call {common.call} with the others, and nobody can give all of their replica its "
        "result; with register_state at every worker they would get the others' state"
    )
    return Fault(FaultKind.MISMATCH, left, text)


def _seen(report: Report) -> ShardReport:
    acted = not report.blank or report.held > 0  # its mate may have finished that
    has = bool(report.state_id) or (acted and (report.founder or not report.has_state))
    held = report.held or (0 if report.spoilt or report.blank else report.finished)
    return ShardReport(report.finished, held, has, initial=report.founder and report.has_state and not report.state_id)


def _plan(view: View, known: Mapping[str, Report], common: ShardPlan, replicas: tuple[Replica, ...], shard: int) -> SalvagePlan:
    """The plan of one shard, from the reports as all shards together have them."""
    mine = shard_view(view, shard)
    if not view.parent_id:
        return planned(mine, {key: known[key] for key in mine.ids if key in known})
    if common.lost:  # no state is registered: all are joiners, and go on with the newest count that any of them has seen
        newest = max((known[key].finished for each in replicas for key in each.ids if key in known), default=0)
        return planned(mine, {key: replace(known[key], finished=newest) for key in mine.ids if key in known})
    finishers = [known[key] for each in replicas for key in each.ids if key in known and known[key].finished == common.call]
    step = max((report.step for report in finishers if not report.blank or report.state_id), default=0)
    adopters = dict(common.adoptions)
    seen = {}
    for key in mine.ids:
        report = known.get(key)
        if report is None:
            continue
        if key in common.blank:
            report = replace(report, blank=True, state_id="", founder=False)
        elif key in common.keepers:
            signature = report.held_signature
            report = replace(report, finished=common.call, step=step, last_signature=signature, current=0, blank=False)
            report = replace(report, current_signature=b"", spoilt=False)  # spoilt is the call before, if any
        elif key in adopters:  # of a joining replica, say, a mate of which holds the result: it goes on with that like the mate
            report = replace(report, blank=False)
        seen[key] = report
    chosen = planned(mine, seen)
    healed = tuple(key for key in mine.ids if key in common.blank and key in known and not known[key].blank)
    return replace(chosen, healed=tuple(dict.fromkeys((*chosen.healed, *healed))))
