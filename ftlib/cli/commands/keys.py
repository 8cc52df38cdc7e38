"""``ftlib keys``: the secret that members share."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(short_help="Make and change the secret that members share.")
def keys() -> None:
    """Make the secret that members share, and change it while they run.

    A member reads its secret_file again when it changes; the first secret in it seals, all are accepted. To change the secret
    of a running job, on the file that all members read (or on each host's copy, one step everywhere before the next one):

    \b
      1. ftlib keys rotate FILE     adds a new secret as the last
      2. ftlib keys promote FILE    makes it the first, two seconds later
      3. ftlib keys drop FILE       removes the others, two seconds later
    """  # noqa: D301 - for click the escape is a command, not text


@keys.command("new", short_help="Print a new secret.")
def keys_new() -> int:
    """Print a new secret: umask 077; ftlib keys new > FILE."""
    from ...launch.processes.credentials import new_secret  # noqa: PLC0415 - brings cryptography

    click.echo(new_secret())
    return 0


_KEY_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@keys.command("rotate", short_help="Step 1: add a new secret, which all then accept.")
@_KEY_FILE
def keys_rotate(*, file: Path) -> int:
    """Step 1: add a new secret to FILE as the last, which all then accept."""
    from ..keys import add_key  # noqa: PLC0415

    add_key(file)
    click.echo(f"a new secret is the last in {file}; once all members have this file (2 s): ftlib keys promote {file}")
    return 0


@keys.command("promote", short_help="Step 2: seal with the last secret from now on.")
@_KEY_FILE
def keys_promote(*, file: Path) -> int:
    """Step 2: make the last secret in FILE the first, which members then seal with."""
    from ..keys import promote_key  # noqa: PLC0415

    promote_key(file)
    click.echo(f"the new secret is the first in {file}; once all members have this file (2 s): ftlib keys drop {file}")
    return 0


@keys.command("drop", short_help="Step 3: remove all secrets but the first.")
@_KEY_FILE
def keys_drop(*, file: Path) -> int:
    """Step 3: remove all secrets but the first from FILE."""
    from ..keys import drop_keys  # noqa: PLC0415

    drop_keys(file)
    click.echo(f"the old secrets are gone from {file}: whoever has only those is a stranger now")
    return 0


@keys.command("token", short_help="Print the token with which Prometheus may ask.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
def keys_token(*, file: Path | None) -> int:
    """Print the bearer token with which Prometheus may GET /metrics (of the secret in FILE, or in the settings)."""
    from ..keys import metrics_token  # noqa: PLC0415

    click.echo(metrics_token(file))
    return 0
