"""The command ``ftlib``. Every error is one line that says what to do.

Exit codes: 0 all is well; 1 something failed; 2 the command line is wrong; ``ftlib run`` also passes on a worker's exit
code, 128 + signal where a signal ended it (130 after Ctrl-C, 143 after SIGTERM).

What each command takes is in ``commands``; this module only brings them together. Nothing here imports what a command needs:
``ftlib --help`` and a TAB are to be quick.
"""

from __future__ import annotations

import sys

import click

from ..launch.command import code_of, run
from .commands.chaos import chaos
from .commands.checkpoints import checkpoints
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.keys import keys
from .commands.look import dashboard, explain, ps, status
from .commands.orders import drain, kill, stack
from .commands.simulate import simulate
from .observability.command import observability


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command and exit."""
    sys.exit(code_of(commands, arguments, "ftlib"))


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from .commands.version import versions  # noqa: PLC0415 - reads the metadata of installed packages

        click.echo(versions())
        context.exit()


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show versions.")
@click.pass_context
def commands(context: click.Context) -> None:
    """Data-parallel PyTorch training that goes on when a worker is killed."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command(short_help="Print what completes these commands in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> int:
    """Print what makes SHELL complete ftlib's commands: eval "$(ftlib completion bash)"."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - used by this alone

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(commands, {}, "ftlib", "_FTLIB_COMPLETE").source())
    return 0


_EACH = (
    chaos,
    checkpoints,
    dashboard,
    demo,
    doctor,
    drain,
    explain,
    keys,
    kill,
    observability,
    ps,
    run,
    simulate,
    stack,
    status,
)
for _each in _EACH:
    commands.add_command(_each)


if __name__ == "__main__":
    main()
