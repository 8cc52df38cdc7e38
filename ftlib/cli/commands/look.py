"""``ftlib ps``, ``status``, ``explain`` and ``dashboard``: what runs, what a member believes, and why."""

from __future__ import annotations

import json

import click

from .options import AS_JSON, TIMEOUT, WHO


@click.command(short_help="List your jobs on this host, and their workers.")
@AS_JSON
def ps(*, as_json: bool) -> int:
    """List your jobs on this host (of ftlib run), with their workers."""
    from ..runs import running, show  # noqa: PLC0415 - brings the runtime

    found = running()
    if as_json:
        click.echo(json.dumps([run.as_dict() for run in found], indent=2))
    else:
        show(found)
    return 0


@click.command(short_help="Show what a member believes.")
@WHO
@AS_JSON
@click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@TIMEOUT
def status(*, address: str | None, as_json: bool, watch: bool, timeout: float) -> int:
    """Show what the member at ADDRESS believes.

    ADDRESS is host:port or the name of a worker, as worker-2 or JOB/worker-2; without it: of your only job on this host.
    """
    from ..overview import show, watch_status  # noqa: PLC0415 - brings the whole runtime, which only this needs
    from ..runs import address_of  # noqa: PLC0415
    from ..status import fetch_status, with_learners  # noqa: PLC0415

    address = address_of(address)
    if watch:
        if as_json:
            raise click.UsageError("--watch is for people, --json for programs: give one of them.")
        return watch_status(lambda: with_learners(fetch_status(address, timeout), timeout))
    answer = fetch_status(address, timeout)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        show(with_learners(answer, timeout))
    return 0


@click.command(short_help="Tell why and how each view changed.")
@WHO
@click.option("--epoch", type=click.IntRange(min=1), default=None, help="Only the change to this epoch.")
@click.option("--last", type=click.IntRange(min=1), default=10, show_default=True, help="So many changes, the newest.")
@AS_JSON
@TIMEOUT
def explain(*, address: str | None, epoch: int | None, last: int, as_json: bool, timeout: float) -> int:
    """Tell why and how each view changed.

    As the member at ADDRESS (as for status) and the drivers of the changes know it.
    """
    from ..explain import explain as text_of  # noqa: PLC0415
    from ..explain import fetch_story  # noqa: PLC0415
    from ..runs import address_of  # noqa: PLC0415

    story = fetch_story(address_of(address), timeout, epoch=epoch, last=last)
    click.echo(json.dumps(story.as_list(), indent=2) if as_json else text_of(story))
    return 0


@click.command(short_help="Serve a live page of the job, for your browser.")
@WHO
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="On 127.0.0.1; 0: any that is free.")
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.option("--link", is_flag=True, help="Print the address of the page that ADDRESS serves itself.")
@click.option("--run", "job", hidden=True, help="Of the launcher of this job, whose workers may be on their way.")
def dashboard(*, address: str | None, port: int, show: bool, link: bool, job: str | None) -> int:
    """Serve a page that shows the job as it goes, for a browser on this host; ADDRESS as for status.

    Open the address that it prints: the token in it lets you in. Ctrl-C ends it. Each worker's agent serves the same page
    itself while that worker lives, at /dashboard of its address (--link).
    """
    from ..dashboard import link as link_to  # noqa: PLC0415 - as for status
    from ..dashboard import serve, serve_run  # noqa: PLC0415
    from ..runs import address_of  # noqa: PLC0415

    if job is not None:
        return serve_run(job, port, say=click.echo)
    if link:
        click.echo(link_to(address_of(address)))
        return 0
    return serve(address_of(address), port, show=show, say=click.echo)
