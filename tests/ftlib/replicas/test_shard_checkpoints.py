"""Checkpoints of replicas that have several processes: which one a shard resumes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlib import ConfigError, FTLib
from ftlib.checkpoints.names import Name, of_all_shards, shard_directory, shards_in


def written(path: Path, shard: int, shards: int, *steps: int) -> None:
    for step in steps:
        (shard_directory(path, shard, shards) / str(Name(step, 1))).mkdir(parents=True)


def test_a_shard_resumes_from_the_newest_step_of_which_all_shards_have_one(tmp_path: Path) -> None:
    written(tmp_path, 0, 2, 10, 20, 30)
    written(tmp_path, 1, 2, 10, 20)
    for shard in range(2):
        assert of_all_shards(tmp_path, shard, 2) == shard_directory(tmp_path, shard, 2) / str(Name(20, 1))
    assert shards_in(tmp_path) == {2}


def test_without_a_step_of_all_shards_there_is_none(tmp_path: Path) -> None:
    written(tmp_path, 0, 2, 10)
    assert of_all_shards(tmp_path, 0, 2) is None


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
