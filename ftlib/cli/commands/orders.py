"""``ftlib drain``, ``kill`` and ``stack``: what one worker is told to do."""

from __future__ import annotations

import sys

import click

from .options import ONE, TIMEOUT

_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.command(short_help="Have one worker leave well.")
@ONE
@_YES
@TIMEOUT
def drain(*, address: str, yes: bool, timeout: float) -> int:
    """Have one worker leave well, after the call under way; ADDRESS as for status."""
    return _order("drain", address, yes=yes, timeout=timeout)


@click.command(short_help="Kill one worker, whether it hangs or not.")
@ONE
@_YES
@TIMEOUT
def kill(*, address: str, yes: bool, timeout: float) -> int:
    """Kill one worker (SIGKILL), whether it hangs or not; ADDRESS as for status."""
    return _order("kill", address, yes=yes, timeout=timeout)


def _order(kind: str, address: str, *, yes: bool, timeout: float) -> int:
    from consensus import OrderKind  # noqa: PLC0415 - as for status

    from ..orders import order  # noqa: PLC0415
    from ..runs import address_of  # noqa: PLC0415

    def agreed(what: str) -> bool:
        if yes:
            click.echo(what)
            return True
        if not sys.stdin.isatty():
            raise click.UsageError(f"{what}. Give --yes to do that without a terminal.")
        return click.confirm(f"{what}. Do it?")

    click.echo(order(OrderKind(kind), address_of(address), timeout, agreed))
    return 0


@click.command(short_help="Show where each thread of a worker is.")
@ONE
@TIMEOUT
def stack(*, address: str, timeout: float) -> int:
    """Show where each thread of a worker is, also while it hangs; ADDRESS as for status."""
    from ..orders import stack_of  # noqa: PLC0415 - as for status
    from ..runs import address_of  # noqa: PLC0415

    click.echo(stack_of(address_of(address), timeout).rstrip())
    return 0
