"""Communication backends, chosen by name. A backend's module is imported only when it is asked for."""

from __future__ import annotations

import importlib

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Framework, Group, GroupSpec, Work

__all__ = ["FRAMEWORKS", "Framework", "Group", "GroupSpec", "Work", "framework_by_name"]

FRAMEWORKS = {
    "gloo": ("gloo", "GlooFramework"),
    "isolated:gloo": ("isolated", "IsolatedFramework"),
    "memory": ("memory", "MemoryFramework"),
    "rehearsal": ("accelerators.rehearsal", "RehearsalFramework"),
}
"""Name -> module below this one, and class."""


def framework_by_name(name: str) -> Framework:
    """A new framework of that name; ConfigError naming the choices if there is none."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"unknown framework {name!r}: choose one of {', '.join(sorted(FRAMEWORKS))}")
    module, kind = FRAMEWORKS[name]
    framework = getattr(importlib.import_module(f"ftlib.frameworks.{module}"), kind)()
    assert isinstance(framework, Framework)
    return framework
