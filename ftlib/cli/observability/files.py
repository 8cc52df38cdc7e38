"""Writes the files, and the scrape file of Prometheus, which finds all members by any one of them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from consensus.tools.metrics import TARGETS

from ...errors import ConfigError
from .board import board
from .rules import rules

BOARD, RULES, SCRAPE, TOKEN = "grafana.json", "rules.yml", "prometheus.yml", "ftlib.token"
_NOWHERE = "127.0.0.1:7000"


def scrape(addresses: Sequence[str], *, token: bool, interval: str) -> str:
    """The configuration of a Prometheus. ``addresses``: of members of one job; ``token``: whether they have a secret."""
    proof = f"authorization: {{type: Bearer, credentials_file: {TOKEN}}}"
    lines = [
        "# Made by: ftlib observability. Any member names all members of its view at /targets: those who come, and no longer",
        "# those who left. Give the addresses of several, in case one is down when Prometheus asks.",
        f"global: {{scrape_interval: {interval}, evaluation_interval: {interval}}}",
        f"rule_files: [{RULES}]",
        "scrape_configs:",
        "  - job_name: ftlib",
        "    honor_labels: true # job and member are the training's",
        *([f"    {proof}"] if token else []),
        "    http_sd_configs:",
    ]
    for address in addresses or [_NOWHERE]:
        lines += [f"      - url: {json.dumps(f'http://{address}{TARGETS}')}", f"        refresh_interval: {interval}"]
        lines += [f"        {proof}"] if token else []
    lines += [
        "    relabel_configs: # a worker that was started again, at another port, goes on with its series",
        "      - {source_labels: [__meta_ftlib_name], target_label: instance}",
    ]
    return "\n".join(lines) + "\n"


def write(directory: Path, addresses: Sequence[str], token: str | None, interval: str) -> list[Path]:
    """Write all files into ``directory``; returns their paths. ``token``: the bearer token of the job, None without a secret.

    ConfigError if they cannot be written.
    """
    texts = {
        BOARD: board(),
        RULES: rules(),
        SCRAPE: scrape(addresses, token=token is not None, interval=interval),
        **({} if token is None else {TOKEN: token}),
    }
    path = directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = directory / name
            if name == TOKEN:  # while an older one is still whole: only its owner can do that, though others may write
                _keep_from_others(path)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; give another directory") from None
    return [directory / name for name in texts]


def _keep_from_others(path: Path) -> None:
    """Make the file, or have an older one, readable to its owner, and to its group if it was: that may be Prometheus's."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        old = stat.S_IMODE(os.fstat(handle).st_mode)
        new = 0o600 | (old & stat.S_IRGRP)
        if new != old:
            os.fchmod(handle, new)
    finally:
        os.close(handle)
