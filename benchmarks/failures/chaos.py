"""Faults of all kinds, by ``ftlib chaos``, on a job under ``ftlib run``: all carried out, no step lost, and ``ftlib explain``
says the same as the report.

    python -m benchmarks chaos                               # 200 faults on 4 workers
    python -m benchmarks chaos --count 20 --seed 3 --kinds cut,agent --log out/chaos.jsonl

Half of the faults that last end before the others give that worker up, half after. For each fault the changes of the view are
compared with what the driver of each change tells (``ftlib explain``): each epoch is told of; who was removed, who joined, how
often, and whether of its own accord, is what the report says; and the survivors' pause is no longer than the changes took. Then
the hashes of all workers' parameters are compared, call by call. Exit code 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import parser
from ftlib.cli.chaos.campaign import Campaign, Row
from ftlib.cli.chaos.job import Job, Sight
from ftlib.cli.chaos.plan import LASTING, NAMES, Planned, draw, in_order, kinds_of
from ftlib.cli.explain import fetch_story
from ftlib.errors import FTLibError
from tests.harness.nursery import Nursery
from tests.processes.jobs.launched import LaunchedRun

SLACK = 0.05
"""Seconds between the moment at which a survivor's call stops and the first evidence that the driver knows of."""


def main() -> int:
    """One campaign, and its comparison."""
    options = parser(__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--kinds", default=",".join(NAMES))
    options.add_argument("--mtbf", type=float, default=1.0)
    options.add_argument("--seconds", type=float, nargs="+", default=[1.0, 8.0], help="how long faults last, by chance")
    options.add_argument("--exclude-after", type=float, default=4.0, help="seconds of silence; more on a busy machine")
    options.add_argument("--patience", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--log", type=Path, default=None)
    args = options.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ftlib-chaos-"))
    nursery = Nursery(directory)
    settings = {"bucket_mb": 0.08, "chaos": True, "exclude_after": args.exclude_after}
    task: dict[str, Any] = {"sizes": [20_000, 300], "pause": 0.03, "settings": settings}
    run = LaunchedRun(directory / "job", args.workers, nursery=nursery, restarts=10 * args.count, **task)
    failed = 1
    try:
        run.training(args.workers)
        failed = _campaign(run, args)
    finally:
        run.close()
        nursery.close()
        if failed:
            print(f"logs in {directory}", flush=True)
        else:
            shutil.rmtree(directory)
    return failed


def _campaign(run: LaunchedRun, args: argparse.Namespace) -> int:
    job, sight = _met(run, args.patience)
    plan = _plan(sight, args)
    campaign = Campaign(job, plan, patience=args.patience, beyond=False)
    rows: list[Row] = []
    wrong: list[str] = []
    spans: list[float] = []
    log = None if args.log is None else args.log.open("w", encoding="utf-8")
    began = time.monotonic()
    try:
        for row in campaign.run():
            rows.append(row)
            found, span, why = compared(row, job.look())
            spans += [span] if span else []
            wrong += [f"fault {row.planned.number} ({row.planned.kind} {row.planned.worker}): {each}" for each in found]
            line = json.dumps({**row.as_dict(), "explained": found or "alike", "because": why})
            print(line, flush=True)
            if log is not None:
                log.write(line + "\n")
                log.flush()
    except FTLibError as error:
        wrong.append(str(error))
    finally:
        if log is not None:
            log.close()
    if "begin anew" in run.said:
        wrong.append("the job was lost, and began anew")
    else:
        wrong += divergent(run)
    _tell(rows, plan, spans, time.monotonic() - began)
    for text in wrong:
        print(f"WRONG: {text}")
    lost = sum(row.steps_lost for row in rows)
    bad = [row for row in rows if row.back != "stayed" and not row.back.startswith(("back", "left"))]
    return int(bool(wrong or lost or bad or len(rows) < len(plan)))


def _met(run: LaunchedRun, patience: float) -> tuple[Job, Sight]:
    """The job, by whichever worker answers: on a busy machine the others may give one up before the first fault."""
    deadline = time.monotonic() + patience
    while True:
        for worker in run.alive():
            job = Job(worker.address, 5.0)
            try:
                return job, job.look()
            except FTLibError:
                continue
        if time.monotonic() > deadline:
            raise FTLibError(f"no worker answers within {patience:g} s")
        time.sleep(0.2)  # between two looks


def _plan(sight: Sight, args: argparse.Namespace) -> tuple[Planned, ...]:
    workers = in_order(sight.members)
    plan = draw(args.seed, args.mtbf, kinds_of(args.kinds), sight.whole(), args.count, 1.0, targets=workers, returning=workers)
    chance = random.Random(args.seed)
    return tuple(dataclasses.replace(planned, seconds=chance.choice(args.seconds)) for planned in plan)


def compared(row: Row, sight: Sight) -> tuple[list[str], float, list[str]]:
    """In what the report and ``ftlib explain`` differ about a fault; how long its changes took by the latter; the causes."""
    old, new = row.epochs
    others = [seen for name, seen in sight.members.items() if name != row.planned.worker]
    changes: dict[int, Any] = {}
    for seen in others:
        try:
            told = fetch_story(seen.address, 5.0).as_list()
        except FTLibError:
            continue
        changes |= {change["epoch"]: change for change in told if old < change["epoch"] <= new and "under_way" not in change}
    differences = []
    missing = [epoch for epoch in range(old + 1, new + 1) if epoch not in changes]
    gone = [_name(change, each["id"]) for change in changes.values() for each in change["removed"]]
    came = [_name(change, each) for change in changes.values() for each in change["joined"]]
    leavers = [each["cause"] == "left" for change in changes.values() for each in change["removed"]]
    if missing:
        differences.append(f"explain does not know of epochs {missing}")
    once, never = [row.planned.worker, *row.mates], list[str]()
    returned, left = row.back.startswith("back"), row.back == "left"
    besides = list(row.others)
    if sorted(gone) != sorted([*(once if returned or left else never), *besides]):
        differences.append(f"worker then: {row.back}; explain: without {gone}")
    if sorted(came) != sorted([*(once if returned else never), *besides]):
        differences.append(f"worker then: {row.back}; explain: with {came}")
    if any(leavers) != (row.planned.kind == "leave"):
        why = [(each["cause"], each["detail"]) for change in changes.values() for each in change["removed"]]
        differences.append(f"of its own accord: {leavers}; {why}")
    span = sum(float(change["phases"]["total"]) for change in changes.values())
    if changes and row.pause > span + SLACK * len(changes):
        differences.append(f"{row.pause:.3f} s of pause; explain: {span:.3f} s in {len(changes)} changes")
    causes = [
        f"{_name(change, each['id'])}: {each['cause']} {each['detail']}"
        for change in changes.values()
        for each in change["removed"]
    ]
    return differences, span, causes


def _name(change: Any, member: str) -> str:
    return str((change["names"].get(member) or {}).get("name") or member).replace(" ", "-")


def divergent(run: LaunchedRun) -> list[str]:
    """Calls after which two workers' parameters differ, or who took part in them."""
    run.read()
    found: dict[int, set[tuple[str, str]]] = {}
    for worker in run.workers:
        for call in worker.calls:
            if "hash" in call and call.get("status", "SUCCESS") == "SUCCESS":
                found.setdefault(call["step"], set()).add((str(call["hash"]), str(call.get("who"))))
    if not found:
        return ["no worker has told the hash of its parameters"]
    return [f"step {step}: {sorted(hashes)}" for step, hashes in sorted(found.items()) if len(hashes) > 1][:20]


def _tell(rows: Sequence[Row], plan: Sequence[Planned], spans: Sequence[float], seconds: float) -> None:
    print(
        f"\n{len(rows)} of {len(plan)} faults carried out in {seconds:.0f} s, {sum(row.steps_lost for row in rows)} steps lost"
    )
    for kind in NAMES:
        of_kind = [row for row in rows if row.planned.kind == kind]
        if of_kind:
            back = Counter(row.back.split(" after")[0] for row in of_kind)
            pauses = sorted(row.pause for row in of_kind)
            print(
                f"{kind:6} {len(of_kind):3}  pause median {statistics.median(pauses):.3f} s, most {pauses[-1]:.3f} s  "
                + ", ".join(f"{count} {text}" for text, count in back.most_common())
                + ("" if kind not in LASTING else f"  (of {sorted({row.planned.seconds for row in of_kind})} s)")
            )
    if spans:
        print(f"changes took, by explain, {statistics.median(spans):.3f} s a fault (median)")


if __name__ == "__main__":
    sys.exit(main())
