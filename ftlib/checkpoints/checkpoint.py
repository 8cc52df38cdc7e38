"""One checkpoint: copied from the registered state quickly, written beside the training, read with everything checked."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from consensus import CarefulLogger

from ..common.host_copies import host_copies
from ..state.codec import flatten, restore
from .manifest import FILE, OF_ONE, CheckpointManifest, File, TornError
from .names import Name, ShardOf, complete

logger = CarefulLogger("ftlib")


@dataclass(frozen=True, slots=True)
class Taken:
    """A copy of a state, in memory."""

    name: Name
    size: int
    """Members of the view."""
    state: object
    copies: dict[str, torch.Tensor]
    run: str = ""
    """See ``CheckpointManifest``; so is ``shard``."""
    shard: ShardOf | None = None

    @classmethod
    def of(cls, tree: object, name: Name, size: int, run: str = "", shard: ShardOf | None = None) -> Taken:
        """Copy all tensors of ``tree``, waiting once for each device. ConfigError names the path of what cannot be kept."""
        state, originals = flatten(tree)
        copies = dict(zip(originals, host_copies(originals.values()), strict=True))
        return cls(name, size, state, copies, run, shard)

    def write(self, directory: Path) -> int:
        """Write to a new ``directory``, synced to the disk; returns its bytes. Raises OSError, or RuntimeError from torch."""
        directory.mkdir()
        if self.copies:
            from . import tensors  # noqa: PLC0415 - takes longer to import than all the rest, and only this needs it

            tensors.write(directory, self.copies)
        files = {path.name: File.of(path) for path in sorted(directory.iterdir())}
        step, epoch = self.name
        names = tuple(self.copies)
        manifest = CheckpointManifest(step, epoch, self.size, names, self.state, files, run=self.run, shard=self.shard)
        manifest.write(directory)
        _sync(directory)
        return manifest.nbytes + (directory / FILE).stat().st_size


@dataclass(frozen=True, slots=True)
class Found:
    """An intact checkpoint that was read."""

    directory: Path | str
    """Where it is: a directory, or a URL."""
    name: Name
    tree: object
    torn: tuple[str, ...] = ()
    """What is wrong with newer ones."""


def publish(part: Path, directory: Path) -> None:
    """Rename ``part`` to ``directory``, durably. Raises OSError if ``directory`` exists already, or ``part`` does not."""
    part.rename(directory)  # never replaces a directory that has something in it
    try:
        _sync(directory.parent)
    except OSError as error:  # it is complete all the same
        logger.info("%s has its name, but that may not survive a power cut: %s", directory, error)


def read(directory: Path) -> object:
    """Return the tree of the checkpoint in ``directory``, with its tensors on the CPU. Raises TornError or OSError."""
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
    """Return the newest intact checkpoint in ``path``, or ``path`` itself if it is one; None if there is no checkpoint.

    Raises TornError if there are checkpoints and none is intact, and OSError.
    """
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
            if os.path.lexists(directory):  # else a job that still runs has newer ones, and removed this one
                torn[names[0]] = str(error)
    if torn:
        raise TornError("; ".join(f"{name}: {text}" for name, text in torn.items()))
    return None


def remove(directory: Path) -> None:
    """Remove ``directory`` with all its contents, if possible. Renamed first, so that half of it does not look torn."""
    doomed = directory if directory.name.startswith(".") else directory.with_name(f".{directory.name}-removed.part")
    try:
        if doomed != directory:
            directory.rename(doomed)
    except OSError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Sync ``directory``: its entries are on the disk only once the directory itself is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
