"""One checkpoint: what it holds, what is refused, and what is recognised as damaged. No processes."""

from __future__ import annotations

import io
import json
import os
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

import ftlib.checkpoints.manifest as manifests
from ftlib import ConfigError
from ftlib.checkpoints.checkpoint import Taken, newest, publish, read, remove
from ftlib.checkpoints.depot import damage as _damage
from ftlib.checkpoints.manifest import CheckpointManifest, TornError
from ftlib.checkpoints.names import Name, Part, complete, parts
from ftlib.state.codec import DTYPES
from ftlib.state.registry import Registered
from tests.ftlib.state.test_state import trees

numbers = st.integers(0, 10**14)
names = st.builds(Name, numbers, numbers)


def write(path: Path, tree: object, step: int = 1, epoch: int = 1) -> Path:
    """As it is done, from beginning to end."""
    name = Name(step, epoch)
    part = path / str(Part.of(name, "me"))
    Taken.of(tree, name, 2).write(part)
    publish(part, path / str(name))
    return path / str(name)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        equal = one.dtype is other.dtype and one.shape == other.shape
        return equal and (not one.numel() or torch.equal(raw(one), raw(other)))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


@given(names, names, st.text(alphabet="0123456789abcdef", min_size=1))
def test_names_sort_as_they_read(one: Name, other: Name, member: str) -> None:
    assert Name.parse(str(one)) == one
    assert Name.parse(str(Part(one, member))) is None
    assert Part.parse(str(Part(one, member))) == Part(one, member)
    assert Part.parse(str(one)) is None
    if max(*one, *other) < 10**8:
        assert (one < other) == (str(one) < str(other))


def test_the_highest_step_is_the_newest_whatever_the_epoch() -> None:
    """A job that was restarted as a whole counts its epochs anew."""
    assert Name(500, 1) > Name(400, 7) > Name(400, 6)


@given(tree=trees)
def test_trees_survive(tree: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert same(read(write(tmp_path_factory.mktemp("tree"), tree)), tree)


def test_what_json_lacks_survives(tmp_path: Path) -> None:
    tree = {"inf": float("inf"), "nan": float("nan"), "bytes": b"\0\xff", "text": "nan", "F": ["float", "nan"], "\ud800": -0.0}
    found = read(write(tmp_path, tree))
    assert same(found, tree)
    assert str(found["\ud800"]) == "-0.0"  # type: ignore[index]


def test_tensors_of_all_dtypes_and_shapes_survive_bit_for_bit(tmp_path: Path) -> None:
    tree = {name: torch.randint(0, 2, (3, 5)).to(dtype) for name, dtype in DTYPES.items()}
    tree |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(float("nan")), "turned": torch.randn(4, 6).t()}
    tree |= {"part": torch.randn(1000)[::7], "wide": torch.randn(1).expand(5), "parameter": nn.Parameter(torch.randn(2))}
    assert same(read(write(tmp_path, tree)), {**tree, "parameter": tree["parameter"].detach()})


def test_it_is_what_any_tool_for_such_checkpoints_reads(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    directory = write(tmp_path, {"model": [{"weight": torch.arange(3.0)}]})
    dcp_to_torch_save(directory, tmp_path / "all.pt")
    assert same(torch.load(tmp_path / "all.pt"), {"state['model'][0]['weight']": torch.arange(3.0)})


def test_a_copy_is_taken_at_once(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    taken = Taken.of(model.state_dict(), Name(1, 1), 1)
    nn.init.zeros_(model.weight)
    taken.write(tmp_path / "one")
    assert same(read(tmp_path / "one"), before)


def test_an_optimizer_goes_on_from_it(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, Registered]:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return model, optimizer, Registered({"model": model, "optimizer": optimizer, "extra": scheduler})

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.arange(12.0).view(3, 4)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    one, two = make(), make()
    for _ in range(3):
        step(*one[:2])
    two[2].load(read(write(tmp_path, one[2].tree(3))))
    step(*one[:2])
    step(*two[:2])
    assert same(dict(one[0].state_dict()), dict(two[0].state_dict()))


def test_what_cannot_be_kept_is_named() -> None:
    with pytest.raises(ConfigError, match=r"state\['a'\]\[1\]: a value of type object"):
        Taken.of({"a": [1, object()]}, Name(1, 1), 1)


def test_what_no_reader_would_accept_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LIMIT", 2000)
    assert read(write(tmp_path, {"x": bytes(300)})) == {"x": bytes(300)}
    with pytest.raises(
        ConfigError, match=r"takes \d+ bytes in manifest.json, and 2000 can be read; keep large values in tensors"
    ):
        write(tmp_path, {"x": bytes(2000)}, step=2)
    assert newest(tmp_path).name == Name(1, 1)  # type: ignore[union-attr]


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file())


@pytest.mark.parametrize("victim", ["manifest.json", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
def test_a_torn_one_is_recognised_and_the_next_older_one_taken(tmp_path: Path, victim: str, damage: str) -> None:
    old, new = (write(tmp_path, {"x": torch.arange(100.0), "step": step}, step) for step in (300, 400))
    assert newest(tmp_path).name == Name(400, 1)  # type: ignore[union-attr]
    file = new / victim
    assert file in files(new)
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes({"cut": data[:-1], "flip": data, "empty": b""}[damage])
    found = newest(tmp_path)
    assert found is not None
    assert (found.name, found.directory, len(found.torn)) == (Name(300, 1), old, 1)
    assert found.torn[0].startswith(f"{Name(400, 1)}: ")
    assert victim in found.torn[0]
    assert found.tree["step"] == 300  # type: ignore[index]


def hostile(path: Path, kind: str) -> None:
    """Something that is called like the newest checkpoint, or is in it, and can never be loaded."""
    newest_ = path / str(Name(10**12 - 1, 1))
    if kind == "a_file":
        newest_.write_text("no directory")
    elif kind == "nowhere":
        newest_.symlink_to(path / "nowhere")
    elif kind == "in_a_circle":
        newest_.symlink_to(newest_)
    else:
        newest_.mkdir()
        manifest = newest_ / "manifest.json"
        if kind == "a_pipe":
            os.mkfifo(manifest)
        elif kind == "a_directory":
            manifest.mkdir()
        elif kind == "huge":
            os.truncate(os.open(manifest, os.O_CREAT | os.O_WRONLY), 1 << 40)
        elif kind == "deep":
            manifest.write_bytes(b"[" * 100_000)


HOSTILE = pytest.mark.parametrize(
    "kind", ["a_file", "nowhere", "in_a_circle", "empty", "a_pipe", "a_directory", "huge", "deep"]
)


@HOSTILE
@pytest.mark.timeout(20)
def test_nothing_that_is_called_like_one_keeps_the_others_from_being_loaded(tmp_path: Path, kind: str) -> None:
    write(tmp_path, {"step": 300}, 300)
    hostile(tmp_path, kind)
    found = newest(tmp_path)
    assert found is not None and found.name == Name(300, 1)
    assert len(found.torn) == 1 and found.torn[0].startswith(f"{Name(10**12 - 1, 1)}: ")


@HOSTILE
@pytest.mark.timeout(20)
def test_nor_from_being_written(tmp_path: Path, kind: str) -> None:
    """Whoever writes looks for newer ones, which it must not outdo: this is none."""
    hostile(tmp_path, kind)
    assert _damage(tmp_path / str(Name(10**12 - 1, 1))) is not None
    assert _damage(write(tmp_path, {}, 300)) is None


def test_where_all_are_torn_nothing_is_loaded(tmp_path: Path) -> None:
    for step in (300, 400):
        (write(tmp_path, {}, step) / "manifest.json").unlink()
    with pytest.raises(TornError, match=r"step-0*400-.*missing.*step-0*300-"):
        newest(tmp_path)
    assert newest(tmp_path / "nowhere") is None
    (tmp_path / "empty").mkdir()
    assert newest(tmp_path / "empty") is None


def test_one_that_is_taken_away_meanwhile_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a job that goes on, and has newer ones."""
    old = write(tmp_path, {"x": torch.ones(3)}, 300)

    def replaced(manifest: CheckpointManifest, directory: Path) -> None:
        if directory == old:
            write(tmp_path, {"x": torch.zeros(3)}, 400)
            remove(old)
        verify(manifest, directory)

    verify = CheckpointManifest.verify
    monkeypatch.setattr(CheckpointManifest, "verify", replaced)
    found = newest(tmp_path)
    assert found is not None
    assert (found.name, found.torn) == (Name(400, 1), ())


def test_one_can_be_chosen(tmp_path: Path) -> None:
    old, _ = (write(tmp_path, {"step": step}, step) for step in (300, 400))
    assert newest(old).name == Name(300, 1)  # type: ignore[union-attr]


def test_what_is_not_complete_is_none(tmp_path: Path) -> None:
    part = Part.of(Name(400, 1), "me")
    Taken.of({}, Name(400, 1), 1).write(tmp_path / str(part))
    assert newest(tmp_path) is None
    assert (complete(tmp_path), parts(tmp_path)) == ([], [part])
    remove(tmp_path / str(part))
    assert not list(tmp_path.iterdir())


def test_nothing_is_ever_replaced(tmp_path: Path) -> None:
    one = write(tmp_path, {"x": 1})
    part = tmp_path / str(Part.of(Name(1, 1), "me"))
    Taken.of({"x": 2}, Name(1, 1), 1).write(part)
    with pytest.raises(OSError, match="not empty"):
        publish(part, one)
    assert read(one) == {"x": 1}


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def forged(directory: Path, file: str, data: bytes) -> None:
    """With a manifest that says that all is well."""
    (directory / file).write_bytes(data)
    manifest = CheckpointManifest.read(directory)
    (directory / "manifest.json").unlink()
    taken = {path.name: type(manifest.files[path.name]).of(path) for path in files(directory)}
    CheckpointManifest(manifest.step, manifest.epoch, 1, manifest.tensors, manifest.state, taken).write(directory)


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_loading_runs_no_code(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = write(tmp_path, {"x": torch.arange(100.0)})
    evil = pickle.dumps(Evil())
    if file == "__0_0.distcp":
        torch.save(Evil(), directory / file)
        evil = (directory / file).read_bytes()
    forged(directory, file, evil)
    with pytest.raises(TornError, match=r"none of the classes|not readable"):
        read(directory)
    assert not (tmp_path / "evil").exists()


def test_metadata_that_leads_elsewhere_or_holds_no_tensor_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path, {"x": torch.arange(3.0)})
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../other"
    forged(directory, ".metadata", pickle.dumps(metadata))
    with pytest.raises(TornError, match=r"leads to \.\./other"):
        read(directory)
    metadata.storage_data = {}
    metadata.state_dict_metadata["state['x']"] = None
    forged(directory, ".metadata", pickle.dumps(metadata))
    with pytest.raises(TornError, match="has no tensor"):
        read(directory)


class OldPickler(pickle.Pickler):
    """As Python before 3.11.4 pickles enums."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_metadata_of_an_older_python_is_read_and_getattr_gets_nothing_else(tmp_path: Path) -> None:
    directory = write(tmp_path, {"x": torch.arange(3.0)})
    metadata, old = pickle.loads((directory / ".metadata").read_bytes()), io.BytesIO()
    OldPickler(old).dump(metadata)
    assert b"getattr" in old.getvalue()
    forged(directory, ".metadata", old.getvalue())
    assert torch.equal(read(directory)["x"], torch.arange(3.0))
    for kind, name in ((torch.Size, "numel"), (_MEM_FORMAT_ENCODING, "__class__")):

        class Foreign:
            what = kind, name

            def __reduce__(self) -> Any:
                return getattr, self.what

        metadata.storage_meta = Foreign()
        forged(directory, ".metadata", pickle.dumps(metadata))
        with pytest.raises(TornError, match="for members of enums"):
            read(directory)


def test_tensors_have_their_strides_again(tmp_path: Path) -> None:
    tree = {
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "turned": torch.randn(3, 4).t(),
        "plain": torch.randn(3, 4),
        "slice": torch.randn(4, 6)[:, ::2],
    }
    found: Any = read(write(tmp_path, tree))
    assert same(tree, found)
    strides = {name: tensor.stride() for name, tensor in tree.items()}
    assert {name: tensor.stride() for name, tensor in found.items()} == {**strides, "slice": (3, 1)}


def test_a_manifest_that_asks_for_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    directory = write(tmp_path, {"x": torch.arange(3.0)})
    manifest = CheckpointManifest.read(directory)
    (directory / "manifest.json").unlink()
    huge = ["D", [["x", ["T", "float32", [1 << 40]]]]]
    CheckpointManifest(1, 1, 1, manifest.tensors, huge, manifest.files).write(directory)
    with pytest.raises(TornError, match="larger than what was announced"):
        read(directory)
    assert "digest" in json.loads((directory / "manifest.json").read_text())
