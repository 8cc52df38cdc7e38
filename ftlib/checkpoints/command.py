"""What ``ftlib checkpoints`` does, in a process that imports torch: ``python -m`` this, and ``list|verify|export PLACE``.

With ``--json`` one object a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..common.units import size
from ..errors import ConfigError
from ..state.codec import flatten
from .choice import newest_whole
from .depot import Depot
from .manifest import OF_ONE, TornError
from .names import Name, shard_folder, whole_names
from .places import depot_of

_Say = Callable[[Mapping[str, Any], str], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where checkpoints are: the place that was given, or that of a shard in it."""

    depot: Depot
    names: list[Name]
    """The complete ones, the newest first."""
    shard: int = 0
    shards: int = 1

    def path(self, name: Name) -> str:
        """From the place that was given."""
        return "/".join(filter(None, (shard_folder(self.shard, self.shards), str(name))))

    def facts(self, name: Name, **more: Any) -> dict[str, Any]:
        """One row as JSON."""
        shard = {} if self.shards == 1 else {"shard": self.shard, "shards": self.shards}
        return {"checkpoint": self.path(name), "step": name.step, **shard, **more}

    def without(self, torn: set[Name]) -> _Place:
        """As this, with intact ones only."""
        return replace(self, names=[name for name in self.names if name not in torn])


def listed(depot: Depot, say: _Say) -> int:
    """Each checkpoint, the newest first; then which steps all shards have."""
    places, intact = _places(depot), []
    for place in places:
        torn = set()
        for name in place.names:
            try:
                manifest = place.depot.manifest(name)
            except (TornError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in OF_ONE:
                    raise
                torn.add(name)
                say(place.facts(name, torn=str(error)), f"{place.path(name)}  torn: {error}")
                continue
            tensors = len(manifest.tensors)
            facts = {"epoch": name.epoch, "bytes": manifest.nbytes, "members": manifest.size, "tensors": tensors}
            text = f"{size(manifest.nbytes)}, {tensors} tensors, written by {manifest.size} members"
            say(place.facts(name, **facts), f"{place.path(name)}  {text}")
        for part in place.depot.parts() if depot.single is None else ():
            text = f"{place.path(part.name)}  not complete: {part.writer} writes it, or has left it over"
            say(place.facts(part.name, writer=part.writer, complete=False), text)
        intact.append(place.without(torn))
    _steps(places, intact, say)
    _say_of_none(depot, places)
    return 0


def verified(depot: Depot, say: _Say) -> int:
    """Each checkpoint against its manifest, then which steps all shards have.

    Returns 1 if one is torn, or there is none: of shards, no step that all have.
    """
    places, intact = _places(depot), []
    for place in places:
        torn = set()
        for name in place.names:
            error = place.depot.damage(name)
            if error is not None:
                torn.add(name)
            facts = place.facts(name, torn=None if error is None else str(error))
            say(facts, f"{place.path(name)}  {error or 'intact'}")
        intact.append(place.without(torn))
    whole = _steps(places, intact, say)
    _say_of_none(depot, places)
    return int(intact != places or not (whole or places[0].names))


def exported(depot: Depot, file: str) -> int:
    """The tensors of the newest intact one, each by its path in the state; of shards, into a file each."""
    try:
        from safetensors import SafetensorError  # noqa: PLC0415 - an extra
        from safetensors.torch import save_file  # noqa: PLC0415 - as above
    except ImportError:
        raise ConfigError("export needs safetensors: pip install 'ftlib[export]'") from None
    counts = {1} if depot.single is not None else depot.shards()
    shards = 1 if 1 in counts or not counts else min(counts)
    if shards > 1 and len(counts) > 1:
        theirs = ", ".join(map(str, sorted(counts)))
        raise ConfigError(
            f"there are checkpoints of replicas of {theirs} processes: give the place of one shard, e.g. "
            f"{depot.of_shard(0, shards)}"
        )
    newest = depot.newest() if shards == 1 else None
    found = newest_whole(depot, shards) if shards > 1 else None if newest is None else [newest]
    if found is None:
        what = "complete checkpoint" if shards == 1 else f"step with a complete checkpoint of all {shards} shards"
        raise ConfigError(f"there is no {what} in {depot}: give another place")
    for shard, each in enumerate(found):
        _, tensors = flatten(each.tree)
        apart = {
            name: tensor.detach().contiguous().clone() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)
        }
        to = Path(file)
        if shards > 1:
            to = to.with_name(f"{to.stem}-{shard_folder(shard, shards)}{to.suffix}")
        if not to.parent.is_dir():
            raise ConfigError(f"{to.parent} is no directory: make it, or give another file")
        try:
            save_file(apart, str(to), metadata={"step": str(each.name.step), "from": str(each.directory)})
        except KeyError as error:
            names = ", ".join(name for name, tensor in apart.items() if tensor.dtype in error.args)
            raise ConfigError(f"safetensors has no {error}, which {names} is of: nothing was exported") from None
        except SafetensorError as error:
            raise ConfigError(f"{to}: {error}: give another file") from None
        print(f"{len(apart)} tensors of step {each.name.step} are in {to}")
    return 0


def main(words: list[str]) -> int:
    """Carry out one command; its exit code."""
    as_json = "--json" in words
    command, place, *rest = [word for word in words if word != "--json"]

    def say(facts: Mapping[str, Any], text: str) -> None:
        print(json.dumps(facts) if as_json else text)

    try:
        depot = depot_of(place)
        if command == "export":
            return exported(depot, *rest)
        return listed(depot, say) if command == "list" else verified(depot, say)
    except (ConfigError, TornError, OSError) as error:
        print(f"ftlib checkpoints: {place}: {error}", file=sys.stderr)
        return 1


def _places(depot: Depot) -> list[_Place]:
    """The given one first, and then each shard's in it."""
    if depot.single is not None:
        return [_Place(depot, [depot.single])]
    places = [_Place(depot, depot.complete())]
    for shards in sorted(depot.shards() - {1}):
        own = [depot.of_shard(shard, shards) for shard in range(shards)]
        places += [_Place(each, each.complete(), shard, shards) for shard, each in enumerate(own)]
    return places


def _steps(places: list[_Place], intact: list[_Place], say: _Say) -> int:
    """Say of each step whether all shards have it; returns how many are whole. ``intact``: ``places`` with those alone."""
    count = 0
    for shards in sorted({place.shards for place in places} - {1}):
        own = [place for place in intact if place.shards == shards]
        whole = {name.step for name in whole_names(place.names for place in own)}
        for step in sorted({name.step for place in places if place.shards == shards for name in place.names}, reverse=True):
            missing = [] if step in whole else _lacking(own, step)
            without = ", ".join(map(str, missing))
            text = (
                f"not whole: there is no intact one of shard {without} of {shards}" if missing else f"whole: of {shards} shards"
            )
            say({"step": step, "shards": shards, "whole": not missing, "missing": missing}, f"step {step}  {text}")
            count += not missing
    return count


def _lacking(own: list[_Place], step: int) -> list[int]:
    """The shards that lack the newest checkpoint of ``step``: its highest epoch, which some of them have."""
    newest = max((name for place in own for name in place.names if name.step == step), default=None)
    return [place.shard for place in own if newest not in place.names]


def _say_of_none(depot: Depot, places: list[_Place]) -> None:
    if not any(place.names for place in places):
        print(f"there is no complete checkpoint in {depot}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
