"""The command ``ftlib observability``."""

from __future__ import annotations

from pathlib import Path

import click

from ...errors import ConfigError


@click.command(short_help="Write a Grafana board, Prometheus rules and a scrape file.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="The job's  [default: of the settings, or of your only run here]",
)
@click.option("--interval", default="15s", show_default=True, help="How often Prometheus asks.")
def observability(*, directory: Path, addresses: tuple[str, ...], secret_file: Path | None, interval: str) -> int:
    """Write what Prometheus and Grafana need into DIRECTORY: grafana.json, rules.yml, prometheus.yml, ftlib.token.

    ADDRESS is host:port or a name as for status, of one or several members that Prometheus asks for all the others; without
    it: of your only job on this host.
    """
    from ..keys import metrics_token  # noqa: PLC0415 - the runtime, which only this needs
    from ..runs import address_of, running  # noqa: PLC0415
    from .files import write  # noqa: PLC0415

    if addresses:
        asked = [address_of(address) for address in addresses]
    else:
        found = running()
        asked = [address for run in found for _, address in run.reachable()][:3] if len(found) == 1 else []
    try:
        token = metrics_token(secret_file)
    except ConfigError:
        if secret_file is not None:
            raise
        token = None
    for path in write(directory, asked, token, interval):
        click.echo(str(path))
    if not asked:
        click.echo("no job of yours runs here: write the address of a member into prometheus.yml", err=True)
    if token is None:
        click.echo("no secret is known: if the job has one, name it with --secret-file", err=True)
    click.echo(f"start it: prometheus --config.file {directory / 'prometheus.yml'}; import grafana.json into Grafana", err=True)
    return 0
