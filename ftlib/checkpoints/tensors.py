"""Tensors to a directory and back with ``torch.distributed.checkpoint``, by one process and without a process group.

This module uses torch's planner and storage directly, since torch's ``save`` and ``load`` need ``no_dist`` and warn each time.

torch's ``.metadata`` is a pickle. The reader here resolves only the few classes that such a file is made of, so that a foreign
checkpoint runs no code. Anything but a plain tensor is refused, since it would be another pickle. The tensors themselves are
read with ``weights_only``. (torch's other format, safetensors, would need one more library; any tool can read this one.)
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from enum import EnumType
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from .manifest import TornError

_METADATA = ".metadata"
_KNOWN = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}
"""The classes that such metadata is made of, besides dtypes."""


def write(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write all ``tensors`` to ``directory``, synced to the disk. Raises OSError, or RuntimeError from torch."""
    writer = _Writer(directory, sync_files=True, overwrite=False)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    writer.set_up_storage_writer(is_coordinator=True)
    planner.set_up_planner(dict(tensors), writer.storage_meta(), is_coordinator=True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    [plan] = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def read(directory: Path, tensors: Mapping[str, torch.Tensor], files: Collection[str]) -> None:
    """Fill ``tensors``. Raises TornError if shapes or dtypes differ, or a file is not among ``files``; OSError."""
    with (directory / _METADATA).open("rb") as file:
        metadata = _load(file)
    _check(metadata, tensors, files)
    try:
        _fill(directory, tensors, metadata)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - torch raises many kinds; the metadata or a tensor is not what was written
        text = str(error).partition("\n")[0]
        raise TornError(f"the tensors are not readable: {type(error).__name__}: {text}") from None


def _fill(directory: Path, tensors: Mapping[str, torch.Tensor], metadata: Metadata) -> None:
    reader = FileSystemReader(directory)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plans = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    [plan] = reader.prepare_global_plan(plans)
    reader.read_data(planner.finish_plan(plan), planner).wait()


class _Writer(FileSystemWriter):
    def storage_meta(self) -> StorageMeta:
        """Leave out the directory: it is renamed once the checkpoint is complete, and may be copied."""
        return StorageMeta(save_id=self.save_id)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Resolve only the classes that such metadata is made of."""
        if (module, name) in _KNOWN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        found = getattr(torch, name, None) if module == "torch" else None
        if not isinstance(found, torch.dtype):
            raise pickle.UnpicklingError(f"{module}.{name} is none of the classes that metadata is made of")
        return found


def _member(kind: Any, name: str) -> Any:
    """What Python before 3.11.4 pickles a member of an enum by; later ones call the class with its value."""
    if not isinstance(kind, EnumType) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"builtins.getattr is for members of enums, not for {name} of {kind!r}")
    return kind[name]


def _load(file: Any) -> Metadata:
    try:
        metadata = _Unpickler(file).load()
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - pickle raises many kinds; all mean the same here
        raise TornError(f"{_METADATA} is not readable: {error}") from None
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise TornError(f"{_METADATA} is no metadata of torch.distributed.checkpoint")
    return metadata


def _check(metadata: Metadata, tensors: Mapping[str, torch.Tensor], files: Collection[str]) -> None:
    for info in metadata.storage_data.values():
        if info.relative_path not in files:
            raise TornError(f"{_METADATA} leads to {info.relative_path}, which is no file of this checkpoint")
    for name, tensor in tensors.items():
        found = metadata.state_dict_metadata.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise TornError(f"{_METADATA} has no tensor {name}")
        if found.size != tensor.shape or found.properties.dtype is not tensor.dtype:
            raise TornError(f"{_METADATA} has another shape or dtype for {name}")
