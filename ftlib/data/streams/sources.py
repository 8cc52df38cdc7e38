"""Where the records of a stream's shards come from."""

from __future__ import annotations

import itertools
import operator
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...common.urls import to_install
from ...errors import ConfigError


def tar_records(path: str, start: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a tar file from number ``start`` on: the files next to each other whose names begin alike.

    What comes before ``start`` is passed over by its headers. A URL (``s3://...``) is opened by fsspec.
    """
    with _opened(path) as file, tarfile.open(fileobj=file, mode="r:*") as archive:
        for key, files in itertools.groupby(_files(archive, start), key=operator.itemgetter(0)):
            yield {"__key__": key, **{kind: content for _, kind, content in files}}


class HuggingFace:
    """The shards of a ``datasets.IterableDataset``."""

    def __init__(self, dataset: Any) -> None:
        """Raises ConfigError if it is none, or was shuffled (or mixed from several) without a seed."""
        count = getattr(dataset, "num_shards", None)
        if not isinstance(count, int) or not hasattr(dataset, "skip"):
            raise ConfigError(
                f"{type(dataset).__name__} is no datasets.IterableDataset: use load_dataset(..., streaming=True) of the "
                "package datasets (pip install 'ftlib[datasets]'), or an ElasticSampler"
            )
        if any(map(_unseeded, _generators(getattr(dataset, "_ex_iterable", None)))):
            raise ConfigError(
                f"this {type(dataset).__name__} was shuffled or mixed without a seed, so its records have another order at "
                "each worker: give shuffle(seed=...), or leave the order to ElasticStream's shuffle="
            )
        self._dataset, self.count = dataset, count

    def records(self, shard: int, start: int) -> Iterator[Any]:
        """Yield the records of a shard from number ``start`` on, which the dataset passes over as it can."""
        part = self._dataset.shard(num_shards=self.count, index=shard)
        return iter(part.skip(start) if start else part)


def _generators(source: Any) -> Iterator[Any]:
    """Yield the random generators of a dataset's sources: only its inside knows of them."""
    if source is None:
        return
    if (generator := getattr(source, "generator", None)) is not None:
        yield generator
    for inner in (getattr(source, "ex_iterable", None), *getattr(source, "ex_iterables", ())):
        yield from _generators(inner)


def _unseeded(generator: Any) -> bool:
    """Whether the system has drawn its seed: 128 bits. People give small ones."""
    entropy = getattr(getattr(generator.bit_generator, "seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy >= 1 << 64


def _opened(path: str) -> Any:
    if "://" not in path:
        return Path(path).open("rb")
    try:
        import fsspec  # noqa: PLC0415 - an extra

        file = fsspec.open(path, "rb")
    except (ImportError, ValueError) as error:  # there is no fsspec; it lacks a package for that scheme, or knows none
        raise ConfigError(f"{path}: {error}: {to_install(path)}, or give the path of a file") from None
    return file.open()


def _key(name: str) -> tuple[str, str]:
    """Split a file's name at the first dot after its folder."""
    folder, slash, base = name.rpartition("/")
    stem, _, kind = base.partition(".")
    return folder + slash + stem, kind.lower()


def _files(archive: tarfile.TarFile, start: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield the key, the kind and the content of each file of the records from number ``start`` on.

    A file is read when it is reached: in a compressed archive, going back means to decompress it from its beginning.
    """
    number, before = -1, None
    for member in archive:
        key, kind = _key(member.name)
        if member.isfile() and kind:
            number, before = number + (key != before), key
            if number >= start:
                yield key, kind, _content(archive, member)
        archive.members.clear()  # type: ignore[attr-defined]  # else it remembers each file of the shard


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()
