"""How the values of metrics are taken from a member's status. Nothing is kept between two scrapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Status = Mapping[str, Any]
Rows = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels, and a number."""


def at(status: Any, path: str) -> Any:
    """The value at the path ``a.b.c``; None if there is none."""
    for key in path.split("."):
        if status is None:
            return None
        status = status.get(key)
    return status


def path_to(path: str) -> Callable[[Status], Any]:
    """Gets the value at ``path``, for values that only the status has."""
    return lambda status: at(status, path)


def by_label(path: str) -> Callable[[Status], Rows | None]:
    """Rows from a mapping of one label's values to numbers."""

    def rows(status: Status) -> Rows | None:
        counts = at(status, path)
        return None if counts is None else [((label,), count) for label, count in sorted(counts.items())]

    return rows


def traffic(status: Status) -> Rows | None:
    """Rows of the messages sent and received, by type."""
    both = [(way, at(status, f"messages.{way}") or {}) for way in ("sent", "received")]
    return [((way, kind), entry["messages"]) for way, kinds in both for kind, entry in sorted(kinds.items())] or None


def all_bytes(status: Status) -> Rows | None:
    """Rows of their bytes."""
    both = [(way, at(status, f"messages.{way}") or {}) for way in ("sent", "received")]
    return [((way,), sum(entry["bytes"] for entry in kinds.values())) for way, kinds in both if kinds] or None


def dropped(status: Status) -> Rows:
    """Rows of messages that were refused, by reason."""
    return [((why,), entry["messages"]) for why, entry in sorted((at(status, "messages.dropped") or {}).items())]


def answers(status: Status) -> bool | None:
    """Whether the layer above answered in time; if not, what is told of it is old, or missing."""
    told = at(status, "ftlib")
    return None if told is None else not told.get("stale", False)


def own_step(key: str) -> Callable[[Status], Any]:
    """This member's own: each member exports its own alone, or a job of n would have n * n series."""

    def value(status: Status) -> Any:
        times = (at(status, "ftlib.step_times") or {}).get(status.get("member"))
        return None if times is None else times[key]

    return value


def _groups(status: Status) -> dict[str, Mapping[str, Any]]:
    """The groups of a collective; the text of an error, which may stand there, is none."""
    found = at(status, "ftlib.collective") or {}
    return {name: group for name, group in found.items() if isinstance(group, Mapping)}


def groups(**keys: str) -> Callable[[Status], Rows | None]:
    """Rows of the groups of a collective, by name; with more than one key, by what each stands for."""

    def rows(status: Status) -> Rows | None:
        groups = _groups(status)
        if not groups:
            return None
        ways = [(name, group, way, key) for name, group in sorted(groups.items()) for way, key in keys.items()]
        return [((name, *([way] if len(keys) > 1 else [])), group.get(key, 0)) for name, group, way, key in ways]

    return rows


def group_paths(status: Status) -> Rows | None:
    """Rows of the ways that messages of a collective's groups travel."""
    groups = _groups(status)
    return [((name, path), 1) for name, group in sorted(groups.items()) for path in group["paths"]] or None


def if_there(path: str, then: Callable[[Any], Any]) -> Callable[[Status], Any]:
    """``then`` of the value at ``path``, which may be None; None if the mapping that should hold it has no such key."""
    *above, last = path.split(".")

    def get(status: Status) -> Any:
        holder = at(status, above[0]) if above else status
        return then(holder[last]) if holder and last in holder else None

    return get


def members(counted: Callable[[Any], bool]) -> Callable[[Status], int | None]:
    """The number of members of the newest view for which ``counted`` returns True."""

    def get(status: Status) -> int | None:
        members = status.get("members")
        return None if members is None else sum(map(counted, members))

    return get


def store_answers(status: Status) -> bool | None:
    """Whether the shared store answers; None without one."""
    store = status.get("store") or {}
    return bool(store["open"]) and store["away_since"] is None if "operations" in store else None


INFO = {"member_id": "member", "address": "address", "policy": "policy", "protocol_version": "protocol_version"}
"""Labels of ``ftlib_info`` and their keys in the status."""


def info(status: Status) -> Rows:
    """Who this is."""
    return [(tuple(str(status.get(key, "")) for key in INFO.values()), 1)]


def build(status: Status) -> Rows | None:
    """What runs here."""
    found = at(status, "ftlib.build")
    return None if found is None else [(tuple(str(found.get(key, "")) for key in BUILD), 1)]


BUILD = ("version", "torch", "python")


def process(read: Callable[[Any], float]) -> Callable[[Status], Rows | None]:
    """Rows of the worker's two processes: ``read`` of each, which is a ``psutil.Process``. For the agent's process alone."""

    def rows(status: Status) -> Rows | None:
        pid = str(at(status, "meta.pid") or "")
        if not pid.isdigit():
            return None
        import psutil  # noqa: PLC0415 - takes long to import, and only a scrape needs it

        found = []
        for name, number in {"worker": int(pid), "agent": os.getpid()}.items():
            if name == "worker" or number != int(pid):
                try:
                    found.append(((name,), float(read(psutil.Process(number)))))
                except psutil.Error:
                    continue  # it ends
        return found

    return rows


def cpu_seconds(each: Any) -> float:
    """Processor time of a process, of its threads too."""
    times = each.cpu_times()
    return float(times.user + times.system)
