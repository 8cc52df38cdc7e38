"""Communication backends, chosen by name. A backend's module is imported only when it is asked for."""

from __future__ import annotations

import importlib

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Framework, Group, GroupSpec, Work

__all__ = ["FRAMEWORKS", "Framework", "Group", "GroupSpec", "Work", "framework_by_name"]

FRAMEWORKS = {"gloo": "GlooFramework", "memory": "MemoryFramework"}
"""Name -> class in the module ``ftlib.frameworks.<name>``."""


def framework_by_name(name: str) -> Framework:
    """A new framework of that name; ConfigError naming the choices if there is none."""
    if name not in FRAMEWORKS:
        raise ConfigError(f"unknown framework {name!r}: choose one of {', '.join(sorted(FRAMEWORKS))}")
    module = importlib.import_module(f"ftlib.frameworks.{name}")
    framework = getattr(module, FRAMEWORKS[name])()
    assert isinstance(framework, Framework)
    return framework
