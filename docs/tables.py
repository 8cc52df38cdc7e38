"""Writes the tables of settings, metrics and commands into their pages, from the code: ``make tables``.

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

import click

import consensus
from consensus.runtime.net.metrics import METRICS
from ftlib.cli.main import commands
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
        "commands": "\n".join(command(names, each) for names, each in all_commands(commands, ("ftlib",))),
    }
    for page in (DOCS / "operations.md", DOCS / "observability.md", DOCS / "commands.md"):
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


def all_commands(found: click.Command, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Those that people call, each with its names from the first on; a group's own before what is in it."""
    if not found.hidden:
        yield names, found
        for name, each in sorted(getattr(found, "commands", {}).items()):
            yield from all_commands(each, (*names, name))


def options(found: click.Command) -> list[click.Option]:
    """Those that are shown to people."""
    return [each for each in found.params if isinstance(each, click.Option) and not each.hidden]


def command(names: tuple[str, ...], found: click.Command) -> str:
    """A section: how it is called, what it does, one row an option.

    Made of what the code says, not of what click makes of it: that differs from one version of click to the next.
    """
    arguments = [_argument(each) for each in found.params if isinstance(each, click.Argument)]
    shown = options(found)
    called = [*names, *(["[OPTIONS]"] if shown else []), *(["COMMAND"] if isinstance(found, click.Group) else arguments)]
    text = [_paragraph(each) for each in inspect.cleandoc(found.help or "").split("\n\n")]
    rows = [f"| {_names(each)} | {' | '.join(_told(each))} |" for each in shown]
    table = "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *rows])
    return "\n\n".join([f"## {' '.join(names)}", f"    {' '.join(called)}", *text, *([table] if rows else [])]) + "\n"


def _paragraph(text: str) -> str:
    """As it is where click would not wrap it."""
    head, _, lines = text.lstrip("\n").partition("\n")
    return "\n".join(f"    {line}" for line in lines.splitlines()) if head == "\b" else text.strip()


def _argument(found: click.Argument) -> str:
    name = str(found.name).upper()
    return (name if found.required else f"[{name}]") + ("..." if found.nargs == -1 else "")


def _names(found: click.Option) -> str:
    kind = found.type
    value = "|".join(kind.choices) if isinstance(kind, click.Choice) else kind.name.upper().removesuffix(" RANGE")
    shown = [*sorted(found.opts, key=len, reverse=True)]
    return f"`{', '.join(shown)}{'' if found.is_flag else f' {found.metavar or value}'}`".replace("|", "\\|")


def _told(found: click.Option) -> tuple[str, str]:
    """Its default, and its meaning."""
    text, _, named = (found.help or "").replace("|", "\\|").rstrip("]").partition(" [default: ")
    if found.required or isinstance(found.show_default, str):
        return "required" if found.required else str(found.show_default), text.strip()
    known = isinstance(found.default, (str, int, float)) and not found.is_flag
    return named or (f"`{found.default}`" if known else ""), text.strip()


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
