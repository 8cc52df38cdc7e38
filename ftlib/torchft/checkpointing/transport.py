"""``CheckpointTransport``: the way of the state to a joining replica."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, NoReturn, TypeVar

from consensus import CarefulLogger

from ...errors import ConfigError

__all__ = ["CheckpointTransport", "check_transport"]

T = TypeVar("T")

logger = CarefulLogger("ftlib")


class CheckpointTransport(Generic[T]):
    """What a ``Manager`` takes as the way of the state, and does not use: ftlib sends it over HTTP, in ``start_quorum``.

    A ``Manager`` says so once where another way was meant.
    """

    over_http = False
    """Whether the state would go over HTTP anyhow."""

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


def check_transport(given: object) -> None:
    """One warning if a manager's ``checkpoint_transport`` says another way than that which the state goes."""
    if given is None or (isinstance(given, CheckpointTransport) and given.over_http):
        return
    kind = type(given).__name__
    logger.warning("Manager: the checkpoint transport %s is not used: a joining replica gets the state over HTTP", kind)
