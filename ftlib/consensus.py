"""``ftlib.consensus``: another name for the package ``consensus``, for who would rather import nothing so generally named.

The modules are the same objects: ``ftlib.consensus.view is consensus.view``, so a class is never there twice.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import consensus

if TYPE_CHECKING:
    from consensus import *  # noqa: F403 - for type checkers, which read this file

_HERE = __name__


class _SameModules(MetaPathFinder, Loader):
    """Gives ``ftlib.consensus.x`` the module ``consensus.x``."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        del path, target
        if not fullname.startswith(f"{_HERE}."):
            return None
        module = importlib.import_module(consensus.__name__ + fullname.removeprefix(_HERE))
        return ModuleSpec(fullname, self, origin=getattr(module, "__file__", None), loader_state=module.__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See ``Loader``."""
        return sys.modules[consensus.__name__ + spec.name.removeprefix(_HERE)]

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back what the import under this name has overwritten: it has run already."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _SameModules())
sys.modules[_HERE] = consensus
