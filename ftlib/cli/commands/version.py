"""``ftlib --version``."""

from __future__ import annotations

import platform

from consensus import PROTOCOL_VERSION

from ...common.releases import release_of


def versions() -> str:
    """One line: this package, the protocol that its members speak, torch (not imported for it), Python."""
    return f"ftlib {_of('ftlib')}, protocol {PROTOCOL_VERSION}, torch {_of('torch')}, Python {platform.python_version()}"


def _of(package: str) -> str:
    return release_of(package, "not installed")
