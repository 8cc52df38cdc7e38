"""What one launch decides by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the ledger. Times in seconds."""

    elastic: bool
    backend: bool = False
    min_workers: int = 1
    max_restarts: int = 0
    restart_delay: float = 1.0
    grace: float = 10.0
    patience: float = 600.0
    """For so long an elastic launch waits with fewer than ``min_workers``."""
    moving: bool = False
    """Whether a file or a command says which hosts there are, so that others may come."""
