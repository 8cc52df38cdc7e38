"""Which releases of packages are here."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def release_of(package: str, otherwise: str) -> str:
    """Its version; ``otherwise`` where it is not installed, as is a source tree that is merely on the path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return otherwise
