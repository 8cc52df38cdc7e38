"""The program's callbacks of ``on_view_change``. They outlive the lifetimes of a worker."""

from __future__ import annotations

from collections.abc import Callable

import torch

from consensus import View


class Listeners:
    """The callbacks, in the order in which they were registered. Used in the program's turn."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[View], None]] = []

    def tell(self, view: View) -> None:
        """Call all callbacks with ``view``. An exception of a callback passes through."""
        with torch.enable_grad():
            for callback in self.callbacks:
                callback(view)
