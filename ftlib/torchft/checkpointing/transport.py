"""``CheckpointTransport``: the way of the state to a joining replica."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Generic, NoReturn, TypeVar

from ...errors import ConfigError

__all__ = ["CheckpointTransport", "transport_of"]

T = TypeVar("T")

logger = logging.getLogger("ftlib")


class CheckpointTransport(Generic[T]):
    """Says to a ``Manager`` which way is meant. The state is sent by ftlib, beside the others' steps (docs/state.md).

    A transport of the program's own is not used: ``Manager`` says so once, and the state comes over HTTP.
    """

    recovery = ""
    """The setting ``recovery_transport`` that it stands for; empty: none."""

    def metadata(self) -> str:
        """Nothing: donors are known by the view."""
        return ""

    def disallow_checkpoint(self) -> None:
        """Nothing is served that could be stopped."""

    def shutdown(self, wait: bool = True) -> None:
        """Nothing was started."""

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: T, timeout: timedelta) -> NoReturn:
        """ConfigError: see the class."""
        raise ConfigError(f"send_checkpoint({dst_ranks}, {step}, {timeout}): {self._remedy} {type(state_dict).__name__}")

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """ConfigError: see the class."""
        raise ConfigError(f"recv_checkpoint({src_rank}, {metadata!r}, {step}, {timeout}): {self._remedy} what is registered")

    @property
    def _remedy(self) -> str:
        return f"{type(self).__name__} sends nothing by itself: a Manager gives a joining replica"


def transport_of(given: object) -> str:
    """The setting ``recovery_transport`` for a manager's ``checkpoint_transport``; one warning if there is none for it."""
    if given is None:
        return "http"
    if isinstance(given, CheckpointTransport) and given.recovery:
        return given.recovery
    kind = type(given).__name__
    logger.warning("Manager: the checkpoint transport %s is not used: a joining replica gets the state over HTTP", kind)
    return "http"
