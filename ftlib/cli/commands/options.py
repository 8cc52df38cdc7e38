"""Arguments and options that several commands take."""

from __future__ import annotations

import click

from ...launch.command import Seconds

WAIT = Seconds(min=0.001, max=86400.0)
"""How long something may be waited for: more than a socket's time-out can say is refused, too."""
WHO = click.argument("address", metavar="[ADDRESS]", required=False)
"""host:port, or a worker of a run here."""
ONE = click.argument("address")
TIMEOUT = click.option("--timeout", type=WAIT, default=5.0, show_default=True, help="Seconds to wait for the answer.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
