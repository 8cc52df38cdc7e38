"""``ftlib drain``, ``kill`` and ``stack``: orders to one member, given to its agent, so they reach a program that hangs."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from consensus import KeyRing, OrderKind, format_address, give_order, new_order, parse_address

from ..errors import FTLibError
from ..launch.processes.credentials import first_accepted, rings_for
from .status import fetch_status, signed_get

_DUMP_TIMEOUT = 60.0
"""Seconds: on a busy host it reads the symbols of all of torch."""


def order(kind: OrderKind, address: str, timeout: float, agreed: Callable[[str], bool]) -> str:
    """Have the member at ``address`` drained or killed; returns what happened, in one line.

    ``agreed``: is told what it means, and returns whether to go on. The order is for the lifetime and the view that were looked
    at: if either has changed meanwhile, nothing is done. Raises FTLibError then, and if no member answers.
    """
    status = fetch_status(address, timeout)
    if not agreed(consequence(kind, status)):
        return "nothing was done"
    said = order_seen(kind, address, str(status.get("member")), status.get("epoch"), timeout)
    return f"{_name_of(status)} at {said}"


def order_seen(
    kind: OrderKind, address: str, member: str, epoch: int | None, timeout: float, rings: Sequence[KeyRing] | None = None
) -> str:
    """Have that lifetime, at ``address``, drained or killed, if its view is still that of ``epoch``; returns what happened.

    ``rings``: secrets to try instead of the user's. Raises FTLibError if it refuses, and if it does not answer.
    """
    wanted = new_order(kind, member, epoch)
    answer, text = _signed(lambda ring: give_order(parse_address(address), wanted, ring, timeout=timeout), address, rings)
    if answer != http.client.OK:
        raise FTLibError(f"{address} refuses: {text}")
    return f"{address}: {text}"


def consequence(kind: OrderKind, status: Mapping[str, Any]) -> str:
    """What the order means for the job, from the member's own status."""
    mates, left = _replicas(status)
    supervised = bool((status.get("meta") or {}).get("supervisor"))
    then = {
        OrderKind.DRAIN: "it leaves after the call under way and is not started again",
        OrderKind.KILL: "its launcher starts it again if it has restarts left" if supervised else "nobody starts it again",
    }[kind]
    least = int((status.get("ftlib") or {}).get("min_size") or 1)
    who = "member" if mates == 1 else "replica"
    if left < 1:
        others = f"no {who} is left, the job ends"
    elif left < least:
        others = f"{left} of at least {least} {who}s (min_size) are left, and steps wait for more"
    else:
        others = f"{left} {who}{'s' * (left != 1)} go{'es' * (left == 1)} on"
    members = left * mates
    if members > 1 and status.get("policy") == "majority":
        others += f", of whom {members // 2 + 1} {'members ' * (mates > 1)}are a quorum"
    if mates > 1:
        then += f", and its whole replica of {mates} processes goes with it"
    return f"{kind.value} {_name_of(status)}: {then}; {others}"


def _replicas(status: Mapping[str, Any]) -> tuple[int, int]:
    """How many processes the member's replica has, and how many other replicas are whole: what a job counts."""
    own, sizes = str(status.get("member")), Counter[tuple[str, int]]()
    cohorts = {}
    for member in status.get("members") or ():
        cohort = member.get("cohort") or {}
        each = cohorts[str(member.get("id"))] = str(cohort.get("name") or member.get("id")), int(cohort.get("size") or 1)
        sizes[each] += 1
    mine = cohorts.get(own, (own, 1))
    return mine[1], sum(1 for each, there in sizes.items() if each != mine and there == each[1])


def stack_of(address: str, timeout: float, rings: Sequence[KeyRing] | None = None) -> str:
    """The stacks of all threads of the member at ``address``: its own answer, or what py-spy sees if Python is silent."""
    code, body = 0, b""
    try:
        code, body = signed_get(address, "/stack", timeout, rings)
    except FTLibError as error:
        silent: FTLibError | None = error
    else:
        silent = None
    if code == http.client.OK:
        return body.decode(errors="replace")
    status = fetch_status(address, timeout, rings)  # raises if not even the agent answers
    return _seen_from_outside(address, status, silent)


def _seen_from_outside(address: str, status: Mapping[str, Any], silent: FTLibError | None) -> str:
    meta = status.get("meta") or {}
    pid, host = str(meta.get("pid") or ""), str(meta.get("host") or "")
    why = "its Python does not answer" if silent is not None else "it does not tell its stacks"
    program = _py_spy()
    if not pid or host not in ("", socket.gethostname()):
        raise FTLibError(f"{address}: {why}: run py-spy dump --pid {pid or 'PID'} at its host, {host or 'wherever it runs'}")
    if program is None:
        raise FTLibError(f"{address}: {why}: pip install py-spy, and try again (or gdb -p {pid})")
    try:
        done = subprocess.run(  # noqa: S603 - a program of the user's, found by its name
            [program, "dump", "--pid", pid], capture_output=True, text=True, timeout=_DUMP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise FTLibError(f"{address}: py-spy did not come back within {_DUMP_TIMEOUT:g} s: try gdb -p {pid}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FTLibError(f"{address}: {why}, and py-spy may not look at process {pid} ({last}): run this as root")
    return done.stdout


def _py_spy() -> str | None:
    """On the PATH, or beside this Python: an environment need not be activated for its programs to be run."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def _signed(give: Callable[[KeyRing], tuple[int, str]], address: str, rings: Sequence[KeyRing] | None) -> tuple[int, str]:
    """Give the order with the user's secret, or with those that runs here have drawn."""
    try:
        return first_accepted(give, rings_for("orders") if rings is None else rings)
    except (OSError, http.client.HTTPException) as error:
        where = format_address(parse_address(address))
        raise FTLibError(f"{where} did not answer ({error}): as far as is known nothing was done") from None


def _name_of(status: Mapping[str, Any]) -> str:
    """As the command line takes it."""
    return str((status.get("meta") or {}).get("name") or status.get("member", "?")[:6]).replace(" ", "-")
