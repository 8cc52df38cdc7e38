"""What ``ftlib checkpoints`` does, in a process that imports torch: ``python -m`` this, and ``list|verify|export PLACE``.

With ``--json`` one object a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..common.units import size
from ..errors import ConfigError
from ..state.codec import flatten
from .depot import Depot
from .manifest import TornError
from .names import Name
from .places import depot_of

_Say = Callable[[Mapping[str, Any], str], None]


def listed(depot: Depot, say: _Say) -> int:
    """Each checkpoint, the newest first."""
    names = _names(depot)
    for name in names:
        try:
            manifest = depot.manifest(name)
        except TornError as error:
            say({"checkpoint": str(name), "step": name.step, "torn": str(error)}, f"{name}  torn: {error}")
            continue
        facts = {
            "checkpoint": str(name),
            "step": name.step,
            "epoch": name.epoch,
            "bytes": manifest.nbytes,
            "members": manifest.size,
        }
        tensors = len(manifest.tensors)
        text = f"{name}  {size(manifest.nbytes)}, {tensors} tensors, written by {manifest.size} members"
        say({**facts, "members": manifest.size, "tensors": tensors}, text)
    if depot.single is None:
        for part in depot.parts():
            text = f"{part.name}  not complete: {part.writer} writes it, or has left it over"
            say({"checkpoint": str(part.name), "step": part.name.step, "writer": part.writer, "complete": False}, text)
    if not names:
        print(f"there is no complete checkpoint in {depot}", file=sys.stderr)
    return 0


def verified(depot: Depot, say: _Say) -> int:
    """Each checkpoint against its manifest; 1 if one is torn, or there is none."""
    names, torn = _names(depot), 0
    for name in names:
        error = depot.damage(name)
        torn += error is not None
        say({"checkpoint": str(name), "torn": None if error is None else str(error)}, f"{name}  {error or 'intact'}")
    if not names:
        print(f"there is no complete checkpoint in {depot}", file=sys.stderr)
    return int(torn > 0 or not names)


def exported(depot: Depot, file: str) -> int:
    """The tensors of the newest intact one, each by its path in the state."""
    try:
        from safetensors.torch import save_file  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("export needs safetensors: pip install safetensors") from None
    found = depot.newest()
    if found is None:
        raise ConfigError(f"there is no complete checkpoint in {depot}: give another place")
    _, tensors = flatten(found.tree)
    apart = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
    save_file(apart, file, metadata={"step": str(found.name.step), "from": str(found.directory)})
    print(f"{len(apart)} tensors of step {found.name.step} are in {file}")
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


def _names(depot: Depot) -> list[Name]:
    return depot.complete() if depot.single is None else [depot.single]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
