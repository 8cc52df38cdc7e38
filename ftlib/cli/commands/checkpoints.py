"""``ftlib checkpoints``: look at checkpoints, verify them, and take the tensors out of one."""

from __future__ import annotations

import subprocess
import sys

import click

from ...launch.command import completes
from .options import AS_JSON

_PLACE = click.argument("place", shell_complete=completes("dir"))


@click.group(short_help="List, verify and export checkpoints.")
def checkpoints() -> None:
    """List, verify and export the checkpoints at PLACE: a directory, a URL (s3://bucket/run1), or one checkpoint there.

    Where replicas have several processes, PLACE has a folder a shard.
    """


@checkpoints.command("list", short_help="Show the checkpoints, the newest first.")
@_PLACE
@AS_JSON
def listed(*, place: str, as_json: bool) -> int:
    """Show the checkpoints at PLACE, the newest first, and what is not complete; then which steps all shards have."""
    return _asked("list", place, *(["--json"] if as_json else []))


@checkpoints.command("verify", short_help="Read all, and compare with what was written.")
@_PLACE
@AS_JSON
def verified(*, place: str, as_json: bool) -> int:
    """Read every file of every checkpoint at PLACE, and compare it with what was written.

    Exit code 1 if one is torn, or there is none to begin from.
    """
    return _asked("verify", place, *(["--json"] if as_json else []))


@checkpoints.command("export", short_help="Write the newest one's tensors as safetensors.")
@_PLACE
@click.argument("file", type=click.Path(dir_okay=False))
def exported(*, place: str, file: str) -> int:
    """Write the tensors of the newest intact checkpoint at PLACE to FILE, as safetensors.

    Of shards, each into a file of its own: all.safetensors becomes all-shard-0-of-2.safetensors and so on.
    """
    return _asked("export", place, file)


def _asked(*words: str) -> int:
    """In a process of its own: this one does not import torch."""
    return subprocess.run([sys.executable, "-m", "ftlib.checkpoints.command", *words], check=False).returncode  # noqa: S603
