"""``ftlib demo``."""

from __future__ import annotations

import importlib

import click

from ...errors import ConfigError


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
    short_help="See workers die, hang and join, for a minute.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def demo(args: tuple[str, ...]) -> int:
    """Train on handwritten digits while workers are killed, stopped and added; about a minute."""
    try:
        module = importlib.import_module("ftlib.cli.demo.main")
    except ModuleNotFoundError as error:
        raise ConfigError(f"the demo needs the package {error.name}: pip install 'ftlib[demo]'") from None
    return int(module.main(list(args)) or 0)
