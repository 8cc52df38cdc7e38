"""One actor: its orders, its log, and what every part has in common."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch

from ftlib import FTLib, Status


class Actor:
    """One process: its orders, its log."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.settings: dict[str, Any] = dict(task["settings"])
        self.given: dict[str, Any] = task["given"]
        self._file = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if task["socket_fds"]:
            self.settings["socket_fds"] = task["socket_fds"]

    def write(self, **values: Any) -> None:
        """One line."""
        os.write(self._file, json.dumps({"t": time.monotonic(), **values}).encode() + b"\n")

    def init(self) -> FTLib:
        """Start; says so."""
        chosen = {"framework": self.given["framework"]} if "framework" in self.given else {}
        ft = FTLib.init(self.given.get("consensus", "gossip"), **{**self.settings, **chosen})
        member = ft._consensus.member
        self.write(event="init", address=f"{member.host}:{member.port}", member=member.id)
        return ft

    def told(self, ft: FTLib, status: Status, value: float) -> None:
        """One call has ended."""
        self.write(call=ft._plane.finished, status=status.name, size=ft.size, epoch=ft.epoch, step=ft.step, value=value)

    def average(self, ft: FTLib, tensor: torch.Tensor | None = None, **options: Any) -> Status:
        """What everybody does: average two tensors of ones, 1,000 and 4 elements."""
        first = torch.full((1_000,), float(self.given.get("value", 1))) if tensor is None else tensor
        status = ft.allreduce_average([first, torch.ones(4)], **options)
        self.told(ft, status, float(first.sum() / first.numel()))
        return status

    def together(self, ft: FTLib, calls: int | None = None) -> None:
        """Average with the others, ``given["calls"]`` times by default."""
        for _ in range(self.given.get("calls", 0) if calls is None else calls):
            self.average(ft)
