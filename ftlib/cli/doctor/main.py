"""The command: this host alone, or this host, the way to another one, and both together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from consensus import format_address
from consensus.tools.diagnosis import Examination, Grade

from ...errors import FTLibError
from ..status import fetch_status
from . import network
from .gpus import compared, examined, summary
from .host import HostFacts, HostProbe


def consult(
    address: str | None, *, job: str | None, timeout: float, as_json: bool, verbose: bool, nccl: bool, probe: HostProbe
) -> int:
    """Examine, and print what was found; returns the exit code. ``nccl``: it is a failure if members could not use NCCL."""
    bad = Grade.BAD if nccl else Grade.NOTED
    diagnoses = [] if address is None else network.examine(address, job=job, timeout=timeout)
    # Importing torch takes seconds: between hosts without GPUs there is nothing to be found out by it.
    facts = probe.facts() if address is None or nccl or probe.gpus.visible else None
    checks = [] if facts is None else examined(facts, os.environ, bad)
    if facts is not None and facts.gpus.visible:
        for diagnosis in diagnoses:
            if diagnosis.healthy:
                where = format_address(diagnosis.address)
                diagnosis.checks += compared(facts, _advertised(where, timeout), where, bad)
    record = network.as_record(address, diagnoses)
    if facts is not None:
        record |= {"host": _host_record(facts, checks), "ok": record["ok"] and _healthy(checks)}
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return 0 if record["ok"] else 1
    console = Console()
    network.show(diagnoses, console, verbose=verbose)
    if facts is not None:
        if verbose:
            console.print(network.table(checks))
        console.print(f"this host: {summary(facts, checks)}", soft_wrap=True, markup=False, highlight=False)
    return 0 if record["ok"] else 1


def listen(address: str | None, probe: HostProbe) -> int:
    """Be examined by a doctor at another host; says what GPUs and versions there are here, if there are GPUs."""
    facts = probe.facts() if probe.gpus.visible else HostFacts(probe.gpus)
    return network.listen(address or network.LISTEN, Console(), facts.advertised())


def _advertised(address: str, timeout: float) -> Mapping[str, str]:
    """What the member there says of its host; empty if nothing."""
    try:
        found = fetch_status(address, timeout).get("meta")
    except FTLibError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _healthy(checks: list[Examination]) -> bool:
    return all(check.grade is not Grade.BAD for check in checks)


def _host_record(facts: HostFacts, checks: list[Examination]) -> dict[str, Any]:
    return {
        "ok": _healthy(checks),
        "gpus": [{"name": gpu.name, "uuid": gpu.uuid} for gpu in facts.gpus.visible],
        "driver": facts.driver,
        "torch": facts.torch,
        "cuda": facts.cuda,
        "nccl": facts.nccl,
        "reconfigure": facts.reconfigure,
        "checks": network.rows(checks),
    }
