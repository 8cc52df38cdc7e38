"""What happened lately, for people: kept as it happens, put into words only when a violation is told."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...errors import StoppedError
from ...protocol.effects import Note
from ...view import View
from .witness import Witness

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Story"]

KEPT = 400
"""Events that are remembered."""

TOLD = 40
"""Events that are told."""

NAMED = 12
"""Of longer lists the rest is only counted."""


class Story(Witness):
    """Starts, deaths, pauses, remarks, views; newest last."""

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._lines: deque[tuple[float, str, str, View | str]] = deque(maxlen=KEPT)

    def name(self, member_id: str) -> str:
        """A member as a reader may remember it: its name in the script, and the first digits of its id."""
        host = self.world.hosts.get(member_id)
        return member_id[:6] if host is None else f"{host.name}~{member_id[:4]}"

    def names(self, ids: Iterable[str]) -> str:
        """Several members, in the given order."""
        known = list(ids)
        more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
        return ", ".join(self.name(key) for key in known[:NAMED]) + more if known else "nobody"

    def show(self, view: View | None) -> str:
        """A view with its members' names."""
        return "no view" if view is None else f"view {view.epoch} <{view.view_id[:6]}: {self.names(view.ids)}>"

    def tell(self, host: Host, what: str, view: View | str = "") -> None:
        """Remember that ``host`` did ``what`` (with ``view``, if one is given)."""
        self._lines.append((self.world.now, host.id, what, view))

    def told(self) -> str:
        """The newest events, a line each."""
        lines = list(self._lines)[-TOLD:]
        return "\n".join(
            f"  {at:9.4f}  {self.name(key):<12} {what} {self.show(of) if isinstance(of, View) else of}".rstrip()
            for at, key, what, of in lines
        )

    def started(self, host: Host) -> None:
        """See ``Witness``."""
        self.tell(host, "starts")

    def killed(self, host: Host) -> None:
        """See ``Witness``."""
        self.tell(host, "dies")

    def paused(self, host: Host) -> None:
        """See ``Witness``."""
        self.tell(host, "is stopped")

    def resumed(self, host: Host) -> None:
        """See ``Witness``."""
        self.tell(host, "goes on")

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self.tell(host, "follows", view)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self.tell(host, "installs", view)

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self.tell(host, "acts in", view)

    def stopped(self, host: Host, error: StoppedError) -> None:
        """See ``Witness``."""
        self.tell(host, f"stops: {type(error).__name__}:", str(error))

    def noted(self, host: Host, note: Note) -> None:
        """See ``Witness``."""
        if note.level >= logging.INFO:
            self.tell(host, f"notes {note.kind}:", note.text)
