"""``ftlib doctor``: what is wrong between two hosts."""

from __future__ import annotations

import os

import click

from .options import AS_JSON, WAIT


@click.command(short_help="Find out why a member cannot be reached.")
@click.argument("address", required=False)
@click.option("--nccl", is_flag=True, help="Fail where members could not use NCCL; else that is a note.")
@click.option("--listen", "listening", is_flag=True, help="Be examined by a doctor at another host, at ADDRESS.")
@click.option("--job", default=None, help="The job that the member should belong to  [default: FTLIB_JOB]")
@AS_JSON
@click.option("-v", "--verbose", is_flag=True, help="Show every check, not only the verdict.")
@click.option("--timeout", type=WAIT, default=2.0, show_default=True, help="Seconds to wait for each answer.")
def doctor(
    *, address: str | None, nccl: bool, listening: bool, job: str | None, as_json: bool, verbose: bool, timeout: float
) -> int:
    """Find out what is wrong between this host and the member at ADDRESS (host:port), and say it in one line.

    Without ADDRESS: what this host's GPUs, driver, torch and NCCL are, and what keeps members here from using NCCL together.
    """
    from ..doctor.host import HostProbe  # noqa: PLC0415 - as for status
    from ..doctor.main import consult  # noqa: PLC0415
    from ..doctor.main import listen as be_examined  # noqa: PLC0415

    probe = HostProbe(os.environ)
    if listening:
        return be_examined(address, probe)
    return consult(address, job=job, timeout=timeout, as_json=as_json, verbose=verbose, nccl=nccl, probe=probe)
