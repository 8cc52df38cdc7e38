"""Checkpoints of replicas that have several processes: which one a shard resumes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlib import ConfigError, FTLib
from ftlib.checkpoints.names import Name, of_shards, shard_folder, shards_in, whole_steps
from ftlib.checkpoints.retention import Stay


def written(path: Path, shard: int, shards: int, *steps: int) -> None:
    for step in steps:
        (path / shard_folder(shard, shards) / str(Name(step, 1))).mkdir(parents=True)


def test_a_step_is_whole_once_all_shards_have_it(tmp_path: Path) -> None:
    written(tmp_path, 0, 2, 10, 20, 30)
    written(tmp_path, 1, 2, 10, 20)
    assert whole_steps(of_shards(tmp_path, 2)) == {10, 20}
    assert shards_in(tmp_path) == {2}


def test_without_a_step_of_all_shards_there_is_none(tmp_path: Path) -> None:
    written(tmp_path, 0, 2, 10)
    assert whole_steps(of_shards(tmp_path, 2)) == set()


def test_what_all_shards_have_stays() -> None:
    names = [Name(step, 1) for step in (50, 40, 30, 20, 10)]
    assert Stay(2).others(names) == names[2:]
    assert Stay(2, lambda: {50, 40, 10}).others(names) == names[2:], "one that stays anyway"
    assert Stay(1, lambda: {20, 10}).others(names) == [Name(40, 1), Name(30, 1), Name(10, 1)]
    assert Stay(5, lambda: {10}).others(names) == []


@pytest.mark.parametrize("shards", [2, 3])
def test_another_number_of_shards_is_an_error(tmp_path: Path, shards: int) -> None:
    written(tmp_path, 0, shards, 10)
    with FTLib.init(config={}) as ft:
        ft.register_state(extra=Nothing())
        with pytest.raises(ConfigError, match=f"of replicas of {shards} processes, and these have 1"):
            ft.load(tmp_path)


class Nothing:
    """Has a state."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: object) -> None:
        """Nothing to do."""
