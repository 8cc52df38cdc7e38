"""What the program registered as its state: objects with ``state_dict`` and ``load_state_dict``, as one tree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.nn import Module
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from ..common.device_waits import settle
from ..common.devices import HOST, place_of
from ..data.sampling import Sampling
from ..errors import ConfigError
from .agreed import Agreed
from .notes import Notes, notes_of
from .parts import Composite, Parts, Stateful, listed_objects, load_into, mapping
from .private import Private
from .sharded import fitting, state_of

UNKNOWN = bytes(16)
"""See ``Registered.shape``."""
_AGREED = "agreed"
"""The key of ``Registered.agreed`` in the tree, beside the roles."""
_PRIVATE = "private"
"""The key of the private state there. Unlike a role's it has a dict for its value, of lists by name."""
_NOTES, _SHARED = "notes", "shared"
"""The key of the notes there: a dict, with those of the private state under ``_PRIVATE``, and of all else under ``_SHARED``."""
_CUSTOM = "custom"
"""The key of what ``state_dict=`` returned."""

Kind = TypeVar("Kind")


class Registered:
    """All registered objects by role."""

    def __init__(
        self,
        roles: Mapping[str, object],
        state_dict: Callable[[], Any] | None = None,
        load_state_dict: Callable[[Any], Any] | None = None,
        apply: Callable[[], Any] | None = None,
        *,
        agreed: Agreed | None = None,
        private: Private | None = None,
    ) -> None:
        """``roles``: name -> one object or a sequence. ``apply``: applies the gradients that lie in the parameters.
        ``agreed``: values that travel with the state. ``private``: what differs between members; None if nothing does.

        In the place of a ``Composite`` its parts are registered. ConfigError naming the object that has no state.
        """
        listed = {role: listed_objects(role, value) for role, value in roles.items() if value is not None}
        composites = {
            id(item): item.registered_parts() for items in listed.values() for item in items if isinstance(item, Composite)
        }
        self._roles = _taken_apart(listed, composites)
        self.private = private = Private.joined([parts.private for parts in composites.values() if parts.private], private)
        _check_apart(self._roles, private)
        self._applying = {id(parts.wrapped): parts.apply for parts in composites.values() if parts.apply is not None}
        """How composites apply gradients, by the ``id`` of the optimizer that each wraps."""
        if (state_dict is None) != (load_state_dict is None):
            raise ConfigError("register_state needs both state_dict= and load_state_dict=, or neither")
        self._save, self._load, self.apply = state_dict, load_state_dict, apply
        self.agreed = Agreed() if agreed is None else agreed
        if not self._roles and state_dict is None:
            raise ConfigError(
                "register_state was given nothing: pass model=, optimizer=, ... or state_dict= and load_state_dict="
                + (", besides private=" if private is not None else "")
            )

    def applying(self, optimizer: Optimizer) -> Callable[[], object] | None:
        """What applies the gradients in the parameters of a registered optimizer, if that is more than its ``step``."""
        return self._applying.get(id(optimizer))

    def tree(self, step: int, *, own: bool = False, private: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The state now, as another member would get it. Tensors are not copied.

        ``own``: with private state that no other member gets, too. ``private``: a copy of ``Private.part``, to be used instead.
        """
        tree = self.shared(step)
        if self.private is not None and (own or self.private.travels):
            part = self.private.part() if private is None else private
            notes = tree.pop(_NOTES)
            tree |= {_PRIVATE: part["state"], _NOTES: {**notes, _PRIVATE: part["notes"]}}
        return tree

    def shared(self, step: int) -> dict[str, Any]:
        """The state now without what is private: equal at all members that have it. Tensors are not copied."""
        tree = self._states()
        notes = {_SHARED: notes_of(tree, self._roles)}  # last: what cannot be sent is named by its path in the state
        return {"step": step, _AGREED: self.agreed.state(), **tree, _NOTES: notes}

    def _states(self) -> dict[str, Any]:
        tree: dict[str, Any] = {role: [state_of(item) for item in items] for role, items in self._roles.items()}
        if self._save is not None:
            tree[_CUSTOM] = self._save()
        return tree

    def of(self, kind: type[Kind]) -> dict[tuple[str, int], Kind]:
        """The objects of class ``kind``, by role and index: ``tree()[role][index]`` is such an object's state."""
        listed = ((role, index, item) for role, items in self._roles.items() for index, item in enumerate(items))
        return {(role, index): item for role, index, item in listed if isinstance(item, kind)}

    def elastic(self) -> list[Sampling]:
        """The elastic sampler, if any. ConfigError if there are several, or if it was not given as ``sampler=``."""
        found = [(role, item) for role, items in self._roles.items() for item in items if isinstance(item, Sampling)]
        if len(found) > 1:
            raise ConfigError(
                "register_state takes one ElasticSampler: join the datasets with torch.utils.data.ConcatDataset, or give the "
                "others a sampler of their own kind"
            )
        if found and found[0][0] != "sampler":
            raise ConfigError(f"register_state: an ElasticSampler was given as {found[0][0]}=: give it as sampler=")
        return [item for _, item in found]

    def count(self, role: str) -> int:
        """The number of objects with that role."""
        return len(self._roles.get(role, ()))

    def places(self) -> tuple[str, ...]:
        """The devices that the registered modules and optimizers have tensors on."""
        own = () if self.private is None else self.private.objects
        modules = [*self.of(Module).values(), *(item for item in own if isinstance(item, Module))]
        found = {place_of(tensor) for module in modules for tensor in (*module.parameters(), *module.buffers())}
        for optimizer in [*self.of(Optimizer).values(), *(item for item in own if isinstance(item, Optimizer))]:
            kept = (value for state in optimizer.state.values() if isinstance(state, Mapping) for value in state.values())
            found.update(place_of(value) for value in kept if isinstance(value, torch.Tensor))
        return tuple(sorted(found - {HOST}))

    def shape(self) -> bytes:
        """16 bytes, equal at workers that registered the same roles, with parameters of the same dtypes and shapes.

        ``UNKNOWN`` if a parameter gets its shape later. Buffers and optimizer state do not count: they may always come later.
        """
        text = [f"{role} {len(items)}" for role, items in self._roles.items()] + ["custom"] * (self._save is not None)
        text += [] if self.private is None else self.private.described()
        for (role, index), module in self.of(Module).items():
            for name, parameter in module.named_parameters():
                if isinstance(parameter, UninitializedParameter):
                    return UNKNOWN
                text.append(f"{role}[{index}].{name} {parameter.dtype} {tuple(parameter.shape)}")
        return hashlib.blake2b("\n".join(text).encode(errors="surrogatepass"), digest_size=len(UNKNOWN)).digest()

    def load(self, tree: object) -> None:
        """Load ``tree``. ConfigError if another program wrote it."""
        self._take(tree, elastic=True)

    def restore(self, tree: object) -> None:
        """Go back to ``tree``, which has this member's own private state, too.

        An elastic sampler keeps its position: only finished calls and view changes move it.
        """
        self._take(tree, elastic=False)

    def _take(self, tree: object, *, elastic: bool) -> None:
        self.check(tree)
        assert isinstance(tree, dict)
        private = self.private if self.private is not None and (self.private.travels or not elastic) else None
        owned = [] if private is None else private.pairs(tree.get(_PRIVATE))
        for _, item, state in owned:
            if isinstance(item, Optimizer):
                _same_algorithm(item, state)
        notes = self._notes(tree, _SHARED, self._states)
        theirs = notes if private is None else self._notes(tree, _PRIVATE, private.tree)
        settle(self.places())  # what is loaded must not be overwritten by what is still under way
        for role, items in self._roles.items():
            for item, state in zip(items, tree[role], strict=True):
                if isinstance(item, Optimizer):
                    _same_algorithm(item, state)
        for role, items in self._roles.items():
            for index, (item, state) in enumerate(zip(items, tree[role], strict=True)):
                if elastic or not isinstance(item, Sampling):
                    load_into(role, notes.loader(item, role, index), notes.label(fitting(item, state), role, index))
        if self._load is not None:
            load_into("load_state_dict", self._load, notes.label(tree[_CUSTOM], _CUSTOM))
        for (name, index), item, state in owned:
            load = theirs.loader(item, name, index)
            load_into(f"private {name}", load, theirs.label(fitting(item, state), name, index))
        self.agreed.load(tree.get(_AGREED), own=not elastic)

    @staticmethod
    def _notes(tree: Mapping[str, Any], part: str, own: Callable[[], Mapping[str, Any]]) -> Notes:
        """The notes of a part of ``tree``. ``own``: that part of the state here, whose versions count where there are none: in
        checkpoints of older releases.
        """
        notes = mapping(tree.get(_NOTES)).get(part)
        return Notes.read(notes_of(own(), {}) if notes is None else notes)

    def check(self, tree: object) -> None:
        """ConfigError if ``tree`` has other roles, or another number of objects."""
        if not isinstance(tree, dict):
            raise ConfigError("the state that arrived is no dict: do all workers run the same program?")
        expected = {role: len(items) for role, items in self._roles.items()}
        arrived = {
            role: len(value) for role, value in tree.items() if role not in ("step", "custom") and isinstance(value, list)
        }
        if expected != arrived or ("custom" in tree) != (self._load is not None):
            raise ConfigError(
                f"this worker registered {_summary(expected)}, the donor {_summary(arrived)}: register the same everywhere"
            )


def _same_algorithm(optimizer: Optimizer, state: object) -> None:
    """ConfigError if ``state`` is from another algorithm: an optimizer would load it, and fail in its first step.

    PyTorch versions add settings to an algorithm, and schedulers add theirs to groups. So algorithms count as different only
    if each side has settings that the other side lacks.
    """
    groups = state.get("param_groups") if isinstance(state, dict) else None
    if not isinstance(groups, list) or not groups or not isinstance(groups[0], dict):
        return
    missing = sorted(set(optimizer.defaults) - set(groups[0]))
    foreign = sorted(set(groups[0]) - set(optimizer.param_groups[0]) - {"initial_lr"})
    if missing and foreign:
        raise ConfigError(
            f"optimizer: the job's is another one than this worker's {type(optimizer).__name__} (its settings are "
            f"{', '.join(foreign)} instead of {', '.join(missing)}): build the same everywhere"
        )


def _taken_apart(listed: Mapping[str, list[Stateful]], composites: Mapping[int, Parts]) -> dict[str, list[Stateful]]:
    """The objects with the parts of composites in place of these. What is part of one does not count a second time.

    ``composites``: by ``id``.
    """
    others = {
        id(other): (role, other)
        for parts in composites.values()
        for role, value in parts.others.items()
        for other in listed_objects(role, value)
    }
    taken = {
        role: [composites[id(item)].wrapped if id(item) in composites else item for item in items if id(item) not in others]
        for role, items in listed.items()
    }
    for role, other in others.values():
        taken.setdefault(role, []).append(other)
    return taken


def _check_apart(roles: Mapping[str, list[Stateful]], private: Private | None) -> None:
    """ConfigError if an object is both shared and private, or is private and cannot be."""
    own = () if private is None else private.objects
    shared = {id(item): role for role, items in roles.items() for item in items}
    for item in own:
        if id(item) in shared:
            raise ConfigError(
                f"register_state: the same {type(item).__name__} was given as {shared[id(item)]}= and as private=: what is "
                "private differs between members, what is shared does not"
            )
        if isinstance(item, Sampling):
            raise ConfigError(
                "register_state: an ElasticSampler deals samples to all members: give it as sampler=, not private="
            )


def _summary(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {role}" for role, count in counts.items()) or "only callables"
