"""Streams of an accelerator; without one nothing is to be done."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["get_stream_context", "record_event", "synchronize"]


def get_stream_context(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """What makes ``stream`` the current one; None: the current one stays."""
    if stream is None or not torch.accelerator.is_available():
        return nullcontext()
    module: Any = torch.xpu if torch.xpu.is_available() else torch.cuda
    context: AbstractContextManager[Any] = module.stream(stream)
    return context


def record_event() -> None:
    """Record an event on the current stream."""
    if torch.accelerator.is_available():
        torch.accelerator.current_stream().record_event()


def synchronize() -> None:
    """Wait for the current stream."""
    if torch.accelerator.is_available():
        torch.accelerator.current_stream().synchronize()
