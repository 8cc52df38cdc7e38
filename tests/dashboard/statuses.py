"""Statuses as members give them, for tests without members."""

from __future__ import annotations

from typing import Any

EVIL = "<img src=x onerror=alert(1)>"


def member_id(number: int) -> str:
    return f"{number:016x}"


def status(number: int = 0, *, size: int = 3, epoch: int = 4, step: int = 10, **more: Any) -> dict[str, Any]:
    """Of member ``number`` of ``size``, with one view change in its history."""
    ids = [member_id(each) for each in range(size)]
    members = [
        {"id": each, "address": f"127.0.0.1:{7000 + place}", "meta": {"name": f"worker {place}"}, "status": "alive"}
        for place, each in enumerate(ids)
    ]
    upper = {
        "phase": "active",
        "rank": number,
        "step": step,
        "finished_calls": step,
        "in_call": None,
        "peers": {each: {"finished": step, "current": 0, "seconds": 0.1} for each in ids if each != member_id(number)},
        "step_times": {each: {"last": 0.02, "median": 0.021, "straggler": False} for each in ids},
        "pauses": {"count": 1, "sum": 0.04},
        "recovery": None,
    }
    change = {
        "epoch": epoch,
        "time": 1000.0,
        "size_before": size + 1,
        "size": size,
        "cause": "proof",
        "removed": [{"id": "dead", "cause": "proof", "detail": EVIL, "source": ids[0]}],
        "joined": [],
        "names": {"dead": {"name": EVIL, "address": "127.0.0.1:1"}},
        "moments": {"proposed": 0.014, "sent": 0.018, "complete": 0.026, "activated": 0.027},
        "phases": {"total": 0.027},
    }
    return {
        "job": "lab",
        "member": member_id(number),
        "address": f"127.0.0.1:{7000 + number}",
        "meta": {"name": f"worker {number}"},
        "policy": "majority",
        "epoch": epoch,
        "active_epoch": epoch,
        "changing": False,
        "coordinator": ids[0],
        "stopped": None,
        "members": members,
        "spares": [],
        "history": [change],
        "notes": [{"time": 1000.0, "level": "INFO", "kind": "dead", "text": EVIL}],
        "ftlib": upper,
        **more,
    }
