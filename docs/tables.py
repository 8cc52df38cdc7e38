"""Writes the tables of settings and metrics into their pages, from the code: ``make tables``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; what is written there by hand is lost.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import consensus
from consensus.runtime.net.metrics import METRICS
from ftlib.cli.observability.rules import ALERTS, RECORDINGS
from ftlib.settings import config, readers

DOCS = Path(__file__).parent
_FIRST_CONSTANT, _FIRST_INTERNAL = "probe_interval", "agreement"
"""Fields of ``consensus.Config`` where the constants of the protocol begin, and what no person sets."""


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with tables, as it should be."""
    found = resolved()
    names = [field.name for field in dataclasses.fields(consensus.Config)]
    constants, internal = names.index(_FIRST_CONSTANT), names.index(_FIRST_INTERNAL)
    tables = {
        "job": settings(names[:constants], found.consensus, consensus.Config),
        "training": settings([field.name for field in dataclasses.fields(config.Settings)], found, config.Settings),
        "protocol": settings(names[constants:internal], found.consensus, consensus.Config),
        "metrics": metrics(),
        "alerts": alerts(),
        "recordings": recordings(),
    }
    for page in (DOCS / "operations.md", DOCS / "observability.md"):
        text = page.read_text(encoding="utf-8")
        yield page, re.sub(r"(?s)(<!-- table (\w+) -->\n).*?(?=<!-- end -->)", lambda at: at[1] + tables[at[2]], text)


def resolved() -> config.Settings:
    """All defaults."""
    return config.resolve({}, {}, {})


def settings(fields: Iterable[str], defaults: Any, kind: type) -> str:
    """One row a setting. Those that must be equal at all members have a star."""
    equal = {term.split("=")[0] for term in resolved().consensus.terms.split()}
    text = meanings(kind)
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for field in fields:
        name = "consensus" if field == "backend" else field
        if name == field == "consensus" or name not in config.READERS:
            continue
        star = " *" if name in equal else ""
        lines.append(f"| `{name}`{star} | {rendered(name, getattr(defaults, field))} | {text[field]} |")
    return "\n".join(lines) + "\n"


def rendered(name: str, value: Any) -> str:
    """A default as people read it."""
    if isinstance(value, type):
        value = next(word for word, kind in config.BACKENDS.items() if kind is value)
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        unit = config.READERS[name] in (readers.as_duration, readers.as_duration_or_zero)
        return f"{value:g}" if not unit else f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def meanings(kind: type) -> dict[str, str]:
    """The first paragraph of what stands below each field, as Markdown; pages that it names become links."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            first = " ".join(inspect.cleandoc(str(text.value.value)).split("\n\n")[0].split()).replace("``", "`")
            found[ast.unparse(field.target)] = re.sub(r"docs/(\w+)\.md(#[\w-]+)?", _link, first)
    return found


def _link(page: re.Match[str]) -> str:
    return f"[{page[1]}]({page[1]}.md{page[2] or ''})"


def metrics() -> str:
    """One row a metric."""
    lines = ["| `ft.metrics()` | Prometheus | kind | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        key = f"`{metric.key.removeprefix('ftlib.')}`" if metric.key else ""
        lines.append(f"| {key} | `{metric.shown}{labels}` | {metric.kind.value} | {metric.help} |")
    return "\n".join(lines) + "\n"


def alerts() -> str:
    """One row an alert."""
    lines = ["| alert | severity | when | for | what to do |", "| --- | --- | --- | --- | --- |"]
    for alert in ALERTS:
        runbook = f"[{alert.runbook.replace('-', ' ')}](operations.md#{alert.runbook})"
        expression = alert.expression.replace("|", "\\|")
        lines.append(f"| `{alert.name}` | {alert.severity} | `{expression}` | {alert.hold} | {runbook} |")
    return "\n".join(lines) + "\n"


def recordings() -> str:
    """One row a recording rule."""
    lines = ["| series | meaning |", "| --- | --- |", *(f"| `{each.name}` | {each.meaning} |" for each in RECORDINGS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
