"""One checkpoint: taken from the registered state within moments, written at leisure, read with everything checked."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from ..state.codec import flatten, restore
from .manifest import FILE, OF_ONE, CheckpointManifest, File, TornError
from .names import Name, complete


@dataclass(frozen=True, slots=True)
class Taken:
    """A copy of a state, in memory."""

    name: Name
    size: int
    """Members of the view."""
    state: object
    copies: dict[str, torch.Tensor]

    @classmethod
    def of(cls, tree: object, name: Name, size: int) -> Taken:
        """Copy all tensors of ``tree``. ConfigError by path where something in it cannot be kept."""
        state, originals = flatten(tree)
        copies = {
            path: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for path, tensor in originals.items()
        }
        return cls(name, size, state, copies)

    def write(self, directory: Path) -> int:
        """Into a new ``directory``, and on the disk; its bytes. OSError, or RuntimeError from torch."""
        directory.mkdir()
        if self.copies:
            from . import tensors  # noqa: PLC0415 - takes longer to import than all the rest, and only this needs it

            tensors.write(directory, self.copies)
        files = {path.name: File.of(path) for path in sorted(directory.iterdir())}
        manifest = CheckpointManifest(self.name.step, self.name.epoch, self.size, tuple(self.copies), self.state, files)
        manifest.write(directory)
        _sync(directory)
        return manifest.nbytes + (directory / FILE).stat().st_size


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that was read: intact."""

    directory: Path
    name: Name
    tree: object
    torn: tuple[str, ...] = ()
    """What is wrong with newer ones."""


def publish(part: Path, directory: Path) -> None:
    """Give ``part`` its name, for good. OSError, where ``directory`` is there already, or ``part`` is not."""
    part.rename(directory)  # never replaces a directory that has something in it
    _sync(directory.parent)


def read(directory: Path) -> object:
    """The tree of the one in ``directory``, its tensors on the CPU. TornError; OSError."""
    manifest = CheckpointManifest.read(directory)
    manifest.verify(directory)
    try:
        tree, found = restore(manifest.state, manifest.nbytes)
    except ValueError as error:
        raise TornError(f"{FILE}: {error}") from None
    if len(found) != len(manifest.tensors):
        raise TornError(f"{FILE} names {len(manifest.tensors)} tensors and has {len(found)}")
    if found:
        from . import tensors  # noqa: PLC0415 - as above

        tensors.read(directory, dict(zip(manifest.tensors, found, strict=True)), manifest.files)
    return tree


def newest(path: Path) -> Found | None:
    """The newest intact one in ``path``, or the one that ``path`` is; None where there are none. TornError, OSError."""
    own = Name.parse(path.name)
    if own is not None and path.is_dir():
        return Found(path, own, read(path))
    torn: dict[Name, str] = {}
    while names := [name for name in complete(path) if name not in torn]:
        directory = path / str(names[0])
        try:
            return Found(directory, names[0], read(directory), tuple(f"{name}: {text}" for name, text in torn.items()))
        except (TornError, OSError) as error:
            if isinstance(error, OSError) and not (isinstance(error, FileNotFoundError) or error.errno in OF_ONE):
                raise
            if os.path.lexists(directory):  # else a job that goes on has newer ones, and took this one away
                torn[names[0]] = str(error)
    if torn:
        raise TornError("; ".join(f"{name}: {text}" for name, text in torn.items()))
    return None


def remove(directory: Path) -> None:
    """Take it away, whatever is in it, if possible. Its name goes first: half of it shall not pass for a torn one."""
    doomed = directory if directory.name.startswith(".") else directory.with_name(f".{directory.name}-removed.part")
    try:
        if doomed != directory:
            directory.rename(doomed)
    except OSError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _sync(directory: Path) -> None:
    """What stands in a directory is on the disk only once the directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
