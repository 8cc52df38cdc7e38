"""Communication backends, chosen by name. A backend's module is imported only when it is asked for."""

from __future__ import annotations

import difflib
import importlib

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Framework, Group, GroupSpec, Work

__all__ = ["FRAMEWORKS", "Framework", "Group", "GroupSpec", "Work", "framework_by_name", "framework_of"]

FRAMEWORKS = {
    "gloo": ("gloo", "GlooFramework"),
    "isolated:gloo": ("isolated", "IsolatedFramework"),
    "isolated:nccl": ("accelerators.isolated", "IsolatedNcclFramework"),
    "isolated:rehearsal": ("accelerators.isolated", "IsolatedRehearsalFramework"),
    "memory": ("memory", "MemoryFramework"),
    "nccl": ("accelerators.nccl", "NcclFramework"),
    "rehearsal": ("accelerators.rehearsal", "RehearsalFramework"),
}
"""Name -> module below this one, and class."""
FOR_TESTS = frozenset({"isolated:rehearsal", "memory", "rehearsal"})
"""Those that are for nothing else."""


def framework_of(given: object) -> Framework:
    """``given`` itself, or a new framework of that name. ConfigError with a remedy if it is neither."""
    if isinstance(given, str):
        return framework_by_name(given)
    if isinstance(given, Framework):
        return given
    made = f": pass {given.__name__}(), not the class" if isinstance(given, type) and issubclass(given, Framework) else ""
    raise ConfigError(f"framework={given!r} is neither a name nor a Framework{made}; names are {_choices()}")


def framework_by_name(name: str) -> Framework:
    """A new framework of that name; ConfigError naming the remedy if there is none."""
    if name not in FRAMEWORKS:
        raise ConfigError(_why_not(name))
    module, kind = FRAMEWORKS[name]
    framework = getattr(importlib.import_module(f"ftlib.frameworks.{module}"), kind)()
    assert isinstance(framework, Framework)
    return framework


def _why_not(name: str) -> str:
    isolated, _, inner = name.rpartition(":")
    if isolated == "isolated" and inner in FRAMEWORKS:
        can = ", ".join(name.partition(":")[2] for name in sorted(FRAMEWORKS.keys() - FOR_TESTS) if ":" in name)
        return f"framework={name!r}: what can have a process of its own is {can}: give framework='isolated:gloo'"
    close = difflib.get_close_matches(name.strip().lower(), FRAMEWORKS, n=1)
    meant = f"did you mean {close[0]!r}? Else " if close else ""
    return f"unknown framework {name!r}: {meant}give one of {_choices()}, or a Framework of your own"


def _choices() -> str:
    tests = ", ".join(sorted(FOR_TESTS))
    return f"{', '.join(sorted(FRAMEWORKS.keys() - FOR_TESTS))} (for tests: {tests})"
