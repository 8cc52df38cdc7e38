"""``ElasticStream``: random jobs in memory, each from its seed; real loaders; tar files; Hugging Face's streams."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftlib import ElasticStream
from ftlib.data.dealing.replica import Replica
from ftlib.data.sampling import Sampling
from ftlib.data.streams import sources
from ftlib.data.streams.schedule import Schedule
from ftlib.data.streams.shards import ShardDeal
from ftlib.data.streams.sources import HuggingFace, tar_records
from ftlib.errors import ConfigError
from tests.harness.basics import around

from .job import play
from .plot import Plot

CASES = 300
SIZES = (5, 0, 70, 16, 1, 9)
LOADERS: dict[str, dict[str, Any]] = {
    "alone": {},
    "workers": {"num_workers": 2, "prefetch_factor": 3},
    "staying": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
}
ALL = sorted((shard, number) for shard, size in enumerate(SIZES) for number in range(size))


def test_every_record_is_committed_once_whoever_comes_and_goes() -> None:
    _play_all(range(CASES))


def test_one_case_again() -> None:
    _play_all([int(os.environ.get("SEED", "2"))])


@pytest.mark.soak
def test_many_more_cases() -> None:
    _play_all(range(CASES, 20_000))


def _play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            play(seed, Plot.stream)
        except Exception as error:
            raise AssertionError(f"SEED={seed}: {error!r}") from error


# --- the same with defects: the cases above have to find each ------------------------------------------------------------


def _the_end_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Nobody tells where a shard ends."""
    patch.setattr(ElasticStream, "_ended", lambda self, epoch, batch: None)


def _the_shards_of_the_dead_are_lost(patch: pytest.MonkeyPatch) -> None:
    """What those who have gone did not read is forgotten."""

    @around(patch, ShardDeal, "again")
    def forgetful(
        again: Any, self: ShardDeal, used: object, kept: object, back: object, drawers: list[str], **more: Any
    ) -> Any:
        gone = {member: self.length(member) for member in self.drawers if member not in drawers}
        return again(self, {**used, **gone}, kept, back, drawers, **more)


def _shards_begin_again(patch: pytest.MonkeyPatch) -> None:
    """Who takes over a shard begins at its first record."""

    @around(patch, Schedule, "left")
    def restarted(left: Any, self: Schedule, count: int) -> Any:
        return tuple((start // (1 << 40) * (1 << 40), stop) for start, stop in left(self, count))


def _only_what_is_drawn_counts(patch: pytest.MonkeyPatch) -> None:
    """A loop's end is told without the fillers that a loader has drawn, though this call may be the last."""
    patch.setattr(Replica, "completed", around_completed(Replica.completed))


def around_completed(completed: Any) -> Callable[..., Any]:
    def hasty(self: Replica, looping: Any) -> Any:
        done = completed(self, looping)
        return done if done.left is None else completed(self, [min(looping, key=lambda share: share.ahead)])

    return hasty


DEFECTS = [_the_end_is_kept, _the_shards_of_the_dead_are_lost, _shards_begin_again, _only_what_is_drawn_counts]


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.__name__ for defect in DEFECTS])
def test_the_cases_find_a_planted_defect(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ftlib.data.job.LIMIT", 400)
    defect(monkeypatch)
    with pytest.raises(AssertionError, match="SEED="):
        _play_all(range(100))


# --- in a program ----------------------------------------------------------------------------------------------------------


def _records(shard: int, start: int) -> Iterator[tuple[int, int]]:
    return iter([(shard, number) for number in range(start, SIZES[shard])])


def _stream(**options: Any) -> ElasticStream:
    return ElasticStream(range(len(SIZES)), _records, batch_size=4, seed=3, **options)


def _train(stream: ElasticStream, loader: Iterable[list[tuple[int, int]]], epochs: int) -> Iterator[list[tuple[int, int]]]:
    """A lone member's loop. Gives what its calls used up."""
    step = 0
    for _ in stream.epochs(epochs):
        for batch in loader:
            share = stream.begin(1)
            count = int(stream.weight(1)) if share.samples else 0
            step += bool(count)
            stream.finished({"me": share}, step)
            assert count in (0, len(batch))
            yield batch if count else []


@pytest.mark.parametrize("sizes", [None, SIZES], ids=["unknown", "sizes"])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_lone_member_sees_every_record_once_an_epoch(kind: str, sizes: tuple[int, ...] | None) -> None:
    stream = _stream(sizes=sizes, lanes=2)
    stream.bind("me")
    stream.found(["me"])
    seen = list(itertools.chain(*_train(stream, stream.loader(collate_fn=list, **LOADERS[kind]), 2)))
    assert sorted(seen) == sorted(ALL * 2)
    assert sorted(seen[: len(ALL)]) == ALL
    told = [index for row in stream.ledger(1) for index in row.indices]
    assert told == seen[len(ALL) :]
    stream.set_epoch(2)
    assert len(stream) >= -(-len(ALL) // 4)


@pytest.mark.parametrize("kind", LOADERS)
def test_unregistered_it_is_read_from_end_to_end(kind: str) -> None:
    loader = _stream().loader(collate_fn=list, **LOADERS[kind])
    first, second = (list(itertools.chain(*loader)) for _ in range(2))
    assert set(first) == set(second) == set(ALL)
    assert sorted(second) == ALL  # the first loop had fillers, as it did not know yet where shards end


def test_workers_that_are_not_forked_read_it() -> None:
    """They get ``open`` pickled, as spawn and forkserver do."""
    loader = _stream().loader(collate_fn=list, num_workers=1, multiprocessing_context="spawn")
    assert set(itertools.chain(*loader)) == set(ALL)


def test_a_member_goes_on_with_its_shard_after_another_one_died() -> None:
    """With lanes=1 it opens each of its own shards once, though members go and its batches are dealt again."""
    opened: list[tuple[int, int]] = []

    def records(shard: int, start: int) -> Iterator[tuple[int, int]]:
        opened.append((shard, start))
        return _records(shard, start)

    stream = ElasticStream(range(len(SIZES)), records, batch_size=4, shuffle=False, sizes=SIZES)
    stream.bind("me")
    stream.found(["me", "other"])
    loader = iter(stream.loader(collate_fn=list))
    seen = []
    for step in range(1, 4):
        seen += next(loader)
        stream.finished({"me": stream.begin(1), "other": stream.begin(0)}, step)
    before = list(opened)
    stream.activated(["me"], {"me": [stream.report()]})
    for step in range(4, 100):
        batch = next(loader, None)
        if batch is None:
            break
        share = stream.begin(1)
        seen += batch if share.samples else []
        stream.finished({"me": share}, step)
    assert len({shard for shard, start in opened if start == 0}) == len([1 for _, start in opened if start == 0])
    assert len(opened) <= len(before) + len(SIZES)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"shards": []}, "between 1 and"),
        ({"shards": "a.tar"}, "'a.tar' is one shard: pass a list"),
        ({"shards": Path("a.tar")}, r"a\.tar'\) is one shard: pass a list"),
        ({"sizes": (1, 2)}, "records of each of the 6 shards"),
        ({"sizes": (0,) * 6}, "not 0 of all"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"lanes": 0}, "lanes=0 must be at least 1"),
    ],
)
def test_arguments(arguments: dict[str, Any], text: str) -> None:
    shards = arguments.pop("shards", range(6))
    with pytest.raises(ConfigError, match=text):
        ElasticStream(shards, _records, **{"batch_size": 4, **arguments})


def test_a_state_of_other_shards_is_refused() -> None:
    state = _stream().state_dict()
    with pytest.raises(ConfigError, match="made with other shards"):
        ElasticStream(list("abcdef"), _records, batch_size=4, seed=3).load_state_dict(state)
    with pytest.raises(ConfigError, match="lanes=1, this ElasticStream has 2"):
        _stream(lanes=2).load_state_dict(state)
    assert isinstance(_stream(), Sampling)


def test_its_length_is_known_once_its_sizes_are() -> None:
    assert len(_stream(sizes=SIZES)) == sum(-(-size // 4) for size in SIZES)
    with pytest.raises(TypeError, match="give it sizes="):
        len(_stream())


def test_a_stream_without_any_record_says_so() -> None:
    stream = ElasticStream(range(3), lambda _shard, _start: [], batch_size=2)
    with pytest.raises(ConfigError, match="none of the 3 shards"):
        list(stream.loader())


# --- sources ---------------------------------------------------------------------------------------------------------------


def _tar(path: Path, records: Iterable[int]) -> str:
    with tarfile.open(path, "w") as archive:
        for record in records:
            for kind in ("cls", "seg.png"):
                content = f"{record} {kind}".encode()
                info = tarfile.TarInfo(f"part/{record:04}.{kind}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return str(path)


def test_tar_files_are_read_by_the_record(tmp_path: Path) -> None:
    path = _tar(tmp_path / "a.tar", range(5))
    records = list(tar_records(path, 3))
    assert records == [
        {"__key__": f"part/{number:04}", "cls": f"{number} cls".encode(), "seg.png": f"{number} seg.png".encode()}
        for number in (3, 4)
    ]
    assert len(list(tar_records(path, 0))) == 5
    assert not list(tar_records(path, 5))


def test_a_stream_of_tar_files(tmp_path: Path) -> None:
    paths = [_tar(tmp_path / f"{shard}.tar", range(10 * shard, 10 * shard + shard)) for shard in range(5)]
    loader = ElasticStream.tar(paths, batch_size=3).loader(collate_fn=list)
    keys = {record["__key__"] for _ in range(2) for batch in loader for record in batch}
    assert keys == {f"part/{10 * shard + number:04}" for shard in range(5) for number in range(shard)}


class Counted(io.FileIO):
    """A file that knows how many bytes were read from it."""

    count = 0

    def read(self, size: int = -1, /) -> bytes:
        data = super().read(size) or b""
        self.count += len(data)
        return data


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_compressed_tar_file_is_read_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To go back in it means to decompress it from its beginning."""
    path, content, records = tmp_path / f"a.tar.{kind}", np.random.default_rng(1).bytes(16_000), 30
    with tarfile.open(path, f"w:{kind}") as archive:  # type: ignore[call-overload]
        for record in range(records):
            for name in ("jpg", "seg.png"):
                info = tarfile.TarInfo(f"{record:04}.{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    with Counted(path) as file:
        monkeypatch.setattr(sources, "_opened", lambda _: file)
        read = list(tar_records(str(path), 1))
        assert [record["jpg"] for record in read] == [content] * (records - 1)
        assert file.count < 2 * path.stat().st_size


def test_a_url_is_opened_by_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    content = Path(_tar(tmp_path / "a.tar", range(3))).read_bytes()
    with fsspec.open("memory://stream/a.tar", "wb") as file:
        file.write(content)
    assert [record["__key__"] for record in tar_records("memory://stream/a.tar", 1)] == ["part/0001", "part/0002"]


def test_a_stream_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for shard, size in enumerate(SIZES):
        lines = [f'{{"number": {100 * shard + number}}}\n' for number in range(size)]
        (tmp_path / f"{shard}.jsonl").write_text("".join(lines or ['{"number": -1}\n']))
    files = sorted(str(path) for path in tmp_path.glob("*.jsonl"))
    dataset = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    loader = ElasticStream.hugging_face(dataset, batch_size=4).loader(collate_fn=list)
    list(loader)
    seen = sorted(record["number"] for batch in loader for record in batch)
    assert seen == sorted([100 * shard + number for shard, number in ALL] + [-1])
    assert [row["number"] for row in HuggingFace(dataset).records(2, 67)] == [267, 268, 269]
    for random in (dataset.shuffle(), dataset.map(dict).shuffle().map(dict)):
        with pytest.raises(ConfigError, match="without a seed"):
            ElasticStream.hugging_face(random, batch_size=4)
    one, other = (HuggingFace(dataset.shuffle(seed=5)) for _ in range(2))
    rows = list(one.records(2, 0))
    assert list(other.records(2, 67)) == rows[67:]


@pytest.mark.parametrize("seed", [None, 5])
def test_a_stream_that_was_shuffled_without_a_seed_is_refused(seed: int | None) -> None:
    """Each worker would have the records of a shard in another order. A dataset as it is inside, as far as that counts."""
    buffer = SimpleNamespace(generator=np.random.default_rng(seed), ex_iterable=SimpleNamespace())
    mapped = SimpleNamespace(ex_iterables=[SimpleNamespace(), SimpleNamespace(ex_iterable=buffer)])
    dataset = SimpleNamespace(num_shards=2, skip=None, _ex_iterable=mapped)
    if seed is not None:
        assert HuggingFace(dataset).count == 2
        return
    with pytest.raises(ConfigError, match=r"without a seed.*shuffle\(seed="):
        HuggingFace(dataset)


def test_what_is_no_stream_of_hugging_face_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no datasets\.IterableDataset"):
        ElasticStream.hugging_face(range(3), batch_size=4)
