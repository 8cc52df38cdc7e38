"""Arguments and options that several commands take."""

from __future__ import annotations

import click

WHO = click.argument("address", metavar="[ADDRESS]", required=False)
"""host:port, or a worker of a run here."""
ONE = click.argument("address")
TIMEOUT = click.option("--timeout", type=float, default=5.0, show_default=True, help="Seconds to wait for the answer.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
