"""Checkpoints in any store that fsspec knows (``s3://``, ``gs://``, ``memory://``, ...), which need have no rename.

    URL/step-000000000400-epoch-00000003/57dbaa/__0_0.distcp, .metadata    what member 57dbaa has written
    URL/step-000000000400-epoch-00000003/manifest.json                     there: it is complete

The manifest is written last, in one request that creates it and fails if there is one. So a checkpoint is complete or not
there, and of several writers of one name one completes it. Each writer has a folder of its own, which the manifest names, so
that they never mix. A removal begins with the manifest, and what a manifest names is never removed before it.

That request is known of ``CREATING``. At other stores fsspec looks first and then writes: of two writers of one name that meet
within that moment both succeed, and the later manifest stays. It names the later writer's whole folder, so nothing is torn.
"""

from __future__ import annotations

import functools
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import fsspec

from consensus import CarefulLogger

from ..common.urls import to_install
from ..errors import ConfigError
from .checkpoint import Found, Taken, read
from .depot import Depot, damage
from .manifest import FILE, CheckpointManifest, TornError
from .names import ALONE, Name, Part, ShardOf

logger = CarefulLogger("ftlib")

CREATING = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
"""Schemes whose package has a request that creates: S3 (``If-None-Match``), Google (``ifGenerationMatch``), Azure."""
_warned: set[str] = set()
"""Schemes of which this process has said that they have none."""


class RemoteDepot(Depot):
    """A prefix of an object store."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        """``system``: of fsspec, as a ``_Store``. ``root``: the prefix as it knows it."""
        self._url = url
        self._system = system
        self.root = root.rstrip("/")
        """The prefix as fsspec knows it."""
        self._manifests: dict[Part, CheckpointManifest] = {}
        """Of what this process has written and not yet completed."""

    @classmethod
    def of(cls, url: str) -> Self:
        """The place of that URL. ConfigError if fsspec does not know its scheme, or lacks a package for it."""
        scheme = url.partition("://")[0]
        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        try:
            system, root = fsspec.core.url_to_fs(url, **(options if scheme not in ("memory", "file", "local") else {}))
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{url}: {error}: {to_install(url)}, or give another place") from None
        if scheme not in CREATING and scheme not in _warned:
            _warned.add(scheme)
            logger.warning(
                "%s:// is not known to have a request that creates a file and fails if there is one: two writers of one "
                "checkpoint may both complete it, and the later one stays; give a directory, s3://, gs:// or az:// instead, or "
                "see to it that a job is not started twice",
                scheme,
            )
        return cls(url.rstrip("/"), _Store(system), root)

    def __str__(self) -> str:
        return self._url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteDepot) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def at(self, name: Name | Part) -> str:
        """See ``Depot``."""
        return f"{self._url}/{name.name if isinstance(name, Part) else name}"

    def complete(self) -> list[Name]:
        """See ``Depot``."""
        return sorted((name for name, files in self._found().items() if FILE in files), reverse=True)

    def parts(self) -> list[Part]:
        """See ``Depot``."""
        writers = {
            Part(name, file.partition("/")[0])
            for name, files in self._found().items()
            if FILE not in files
            for file in files
            if "/" in file
        }
        return sorted(writers)

    def prepare(self) -> None:
        """Nothing has to be made: a prefix is there once something is below it."""

    def write(self, taken: Taken, part: Part) -> int:
        """See ``Depot``: written to this host's temporary directory first, then sent."""
        with _temporary() as local:
            directory = local / "checkpoint"
            nbytes = taken.write(directory)
            manifest = CheckpointManifest.read(directory).within(part.writer)
            for file in manifest.files:
                self._system.put_file(str(directory / file), self._path(part.name, part.writer, file))
            self._manifests[part] = manifest
        return nbytes

    def publish(self, part: Part) -> None:
        """See ``Depot``."""
        manifest = self._manifests.pop(part)
        path, packed = self._path(part.name, FILE), manifest.packed()
        files = self._found().get(part.name, set())
        if FILE in files:
            raise FileExistsError(f"{self.at(part.name)} is complete already")
        if not {f"{part.writer}/{file}" for file in manifest.files} <= files:
            raise FileNotFoundError(f"what was written of {self.at(part.name)} is gone")
        try:
            self._system.pipe_file(path, packed, mode="create")
        except OSError:
            stored = None
            with suppress(OSError):  # then nobody knows, and what the manifest may name stays: see ``remove``
                stored = self._system.cat_file(path)
            if stored == packed:  # it arrived, its answer was lost, and the request was sent again
                return
            if stored is not None:
                raise FileExistsError(f"{self.at(part.name)} is complete already") from None
            raise

    def remove(self, name: Name | Part) -> None:
        """See ``Depot``."""
        try:
            if isinstance(name, Part):
                self._manifests.pop(name, None)
                if self._completed(name):
                    return
                self._system.rm(self._path(name.name, name.writer), recursive=True)
            else:
                with suppress(FileNotFoundError):
                    self._system.rm_file(self._path(name, FILE))
                self._system.rm(self._path(name), recursive=True)
        except FileNotFoundError:
            pass
        except OSError as error:  # a later save tries again
            logger.info("%s was not removed: %s: %s", self.at(name), type(error).__name__, error)

    def damage(self, name: Name) -> Exception | None:
        """See ``Depot``."""
        try:
            with self.opened(name) as directory:
                return damage(directory)
        except TornError as error:
            return error

    def manifest(self, name: Name) -> CheckpointManifest:
        """See ``Depot``."""
        if self.single == name:
            return self.parent.manifest(name)
        try:
            packed = self._system.cat_file(self._path(name, FILE))
        except FileNotFoundError:
            raise TornError(f"{FILE} is missing") from None
        return CheckpointManifest.of(packed)

    def newest(self) -> Found | None:
        """See ``Depot``."""
        own = self.single
        if own is not None:
            return Found(self._url, own, self.parent.tree(own))
        torn: dict[Name, str] = {}
        while names := [name for name in self.complete() if name not in torn]:
            name = names[0]
            try:
                return Found(self.at(name), name, self.tree(name), tuple(f"{each}: {text}" for each, text in torn.items()))
            except TornError as error:
                if self._system.exists(self._path(name, FILE)):  # else a job that still runs has newer ones, and removed it
                    torn[name] = str(error)
        if torn:
            raise TornError("; ".join(f"{name}: {text}" for name, text in torn.items()))
        return None

    def tree(self, name: Name) -> object:
        """What is in a complete checkpoint. Raises TornError."""
        with self.opened(name) as directory:
            return read(directory)

    @property
    def single(self) -> Name | None:
        """See ``Depot``."""
        return Name.parse(posixpath.basename(self.root))

    @contextmanager
    def opened(self, name: Name) -> Iterator[Path]:
        """See ``Depot``: fetched into this host's temporary directory. Raises TornError if something is missing."""
        if self.single == name:
            with self.parent.opened(name) as directory:
                yield directory
            return
        with _temporary() as local:
            manifest = self.manifest(name)
            (local / FILE).write_bytes(manifest.packed())
            for file in manifest.files:
                try:
                    self._system.get_file(self._path(name, manifest.folder, file), str(local / file))
                except FileNotFoundError:
                    raise TornError(f"{file} is missing") from None
            yield local

    @property
    def prompt(self) -> bool:
        """See ``Depot``: a few requests, over a network."""
        return False

    @property
    def full(self) -> bool:
        """Stores do not fill up; the temporary directory of this host does."""
        return shutil.disk_usage(tempfile.gettempdir()).free < 1 << 20

    def shards(self) -> set[int]:
        """See ``Depot``."""
        found = set()
        for path in self._paths():
            folder, _, below = path.rpartition("/")[0].rpartition("/")
            own = ShardOf.parse(folder) if folder else ALONE
            if own is not None and Name.parse(below) is not None and posixpath.basename(path) == FILE:
                found.add(own.shards)
        return found

    def below(self, folder: str) -> Self:
        """See ``Depot``."""
        return type(self)(f"{self._url}/{folder}", self._system, f"{self.root}/{folder}") if folder else self

    @property
    def parent(self) -> Self:
        """See ``Depot``."""
        return type(self)(posixpath.dirname(self._url), self._system, posixpath.dirname(self.root))

    @property
    def shard(self) -> ShardOf | None:
        """See ``Depot``."""
        return ShardOf.parse(posixpath.basename(self.root))

    # --- inside --------------------------------------------------------------------------------------------------------

    def _path(self, name: Name, *below: str) -> str:
        return posixpath.join(self.root, str(name), *below)

    def _completed(self, part: Part) -> bool:
        """Whether a manifest names what was written there; it may have arrived although its writer was told of an error."""
        try:
            return self.manifest(part.name).folder == part.writer
        except TornError:
            return False

    def _found(self) -> dict[Name, set[str]]:
        """All checkpoints, complete or not, with the files of each."""
        found: dict[Name, set[str]] = {}
        for path in self._paths():
            folder, _, file = path.partition("/")
            name = Name.parse(folder)
            if name is not None and file:
                found.setdefault(name, set()).add(file)
        return found

    def _paths(self) -> list[str]:
        """All files here and below, by their paths from here."""
        self._system.invalidate_cache()
        try:
            paths = self._system.find(self.root)
        except FileNotFoundError:
            return []
        prefix = f"{self.root}/".lstrip("/")  # not every system says the first slash
        return [path.lstrip("/").removeprefix(prefix) for path in paths if path.lstrip("/").startswith(prefix)]


class _Store:
    """A file system of fsspec, whose methods raise nothing but OSError: the packages below it have errors of their own."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        """A method."""
        return functools.partial(self._call, getattr(self._system, name))

    def _call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ftlib-") as directory:
        yield Path(directory)
