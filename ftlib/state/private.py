"""State that belongs to one member: what it computes on between calls, as the inner optimizer of local training.

It is never compared between members. A joiner gets that of one donor, all of it from the same one and of the same moment; or it
keeps what it has. The rest of the registered state is *shared*: equal at all members, and only calls lead to changes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch.optim import Optimizer

from ..errors import ConfigError
from .notes import notes_of
from .parts import Stateful, listed_objects
from .sharded import state_of

DONOR, FRESH = "donor", "fresh"
"""Where a joiner's private state comes from: a donor, or the joiner's own program."""
_UNNAMED = "private"


class Private:
    """The private objects of one member, by name."""

    def __init__(self, given: Mapping[str, object], *, travels: bool) -> None:
        """``given``: an object or a sequence for each name. ``travels``: True if a joiner gets it, and checkpoints hold it.

        ConfigError naming the object that has no state.
        """
        self._named = {name: listed_objects(f"private {name}", value) for name, value in given.items()}
        self.travels = travels

    @classmethod
    def of(cls, given: object, source: str = DONOR) -> Self | None:
        """What ``register_state`` was given as ``private=`` and ``private_from=``; None if there is none."""
        if source not in (DONOR, FRESH):
            raise ConfigError(f"private_from={source!r}: give {DONOR!r} or {FRESH!r}")
        if given is None:
            return None
        if isinstance(given, str):
            if given != FRESH:
                raise ConfigError(f"private={given!r}: give objects, or {FRESH!r}")
            return cls({}, travels=False)
        named = given if isinstance(given, Mapping) and not isinstance(given, Stateful) else {_UNNAMED: given}
        if any(type(name) is not str for name in named):
            raise ConfigError("private=: its keys are names, hence texts")
        return cls(named, travels=source == DONOR)

    @classmethod
    def joined(cls, parts: Sequence[Mapping[str, Stateful]], given: Self | None) -> Self | None:
        """The ``parts`` of composites, and then the objects that were ``given`` besides; None if there are none.

        All composites of a kind give their parts the same names. So of several each one's number is put before the names.
        ConfigError if an object was given under the name of a part.
        """
        first = {
            f"{number}.{name}" if len(parts) > 1 else name: part
            for number, named in enumerate(parts)
            for name, part in named.items()
        }
        if not first:
            return given
        if given is None:
            return cls(first, travels=True)
        for name in given._named:  # noqa: SLF001 - its like
            if name in first:
                raise ConfigError(
                    f"private=: the name {name!r} is taken by the {type(first[name]).__name__} of what is registered besides: "
                    "give the object another name"
                )
        return cls({**first, **given._named}, travels=given.travels)  # noqa: SLF001 - its like

    @property
    def objects(self) -> tuple[Stateful, ...]:
        """All of them, in order."""
        return tuple(item for items in self._named.values() for item in items)

    @property
    def first_optimizer(self) -> Optimizer | None:
        """The first one that runs hooks before it steps; None if there is none."""
        found = (item for item in self.objects if isinstance(item, Optimizer))
        return next((item for item in found if getattr(type(item).step, "hooked", False)), None)

    def tree(self) -> dict[str, Any]:
        """The state now. Tensors are not copied."""
        return {name: [state_of(item) for item in items] for name, items in self._named.items()}

    def part(self) -> dict[str, Any]:
        """The state now with its notes: all that ``Registered.tree`` takes for it."""
        state = self.tree()
        return {"state": state, "notes": notes_of(state, self._named)}

    def pairs(self, tree: object) -> list[tuple[tuple[str, int], Stateful, Any]]:
        """Each object with its name, its place under that name, and its part of ``tree``.

        ConfigError if ``tree`` is of other objects.
        """
        there = tree if isinstance(tree, Mapping) else {}
        theirs = {str(name): len(states) if isinstance(states, list) else -1 for name, states in there.items()}
        ours = {name: len(items) for name, items in self._named.items()}
        if ours != theirs:
            raise ConfigError(
                f"this worker registered private={_summary(ours)}, the donor private={_summary(theirs)}: register the same "
                "everywhere"
            )
        return [
            ((name, index), item, state)
            for name, items in self._named.items()
            for index, (item, state) in enumerate(zip(items, there[name], strict=True))
        ]

    def described(self) -> list[str]:
        """Texts that are equal at members whose private state fits each other's."""
        return [f"private {name} {len(items)}" for name, items in self._named.items()] if self.travels else []


def _summary(counts: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}: {count}" for name, count in counts.items()) + "}"
