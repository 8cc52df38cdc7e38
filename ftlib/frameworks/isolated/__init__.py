"""Process groups in a process of their own, which can be killed."""

from __future__ import annotations

from .framework import IsolatedFramework

__all__ = ["IsolatedFramework"]
