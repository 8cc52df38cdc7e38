"""Which part of which replica a process is."""

from __future__ import annotations

from typing import Any

import pytest

from ftlib import ConfigError, FTLib
from ftlib.settings.config import resolve
from ftlib.settings.replicas import Part, check_supported, part_of

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_process_is_a_replica_by_itself_unless_told_otherwise() -> None:
    assert part_of({}, {}) == part_of({}, TORCHRUN) == Part("", 0, 1)
    assert part_of({"replica": "a"}, {}) == part_of({"replica": "a", "shards": 1}, TORCHRUN) == Part("a", 0, 1)


def test_settings_and_variables_say_which() -> None:
    variables = {"FTLIB_REPLICA": "a", "FTLIB_SHARD": "1", "FTLIB_SHARDS": "3"}
    assert resolve({}, None, variables).part == Part("a", 1, 3)
    assert resolve({"shard": 2}, None, variables).part == Part("a", 2, 3)


def test_torchrun_within_a_replica_is_understood() -> None:
    found = resolve({"introducers": "127.0.0.1:7000", "replica": "a"}, None, TORCHRUN)
    assert found.part == Part("a", 1, 2)
    alone = resolve({"replica": "a", "shards": 2}, None, TORCHRUN)
    assert alone.part == Part("a", 1, 2)
    assert alone.launched is None, "it knows one replica, not the job"
    assert alone.consensus.initial_size == 1


@pytest.mark.parametrize(
    ("found", "environment", "text"),
    [
        ({"shards": 2}, {}, "give replica"),
        ({"shards": 2, "replica": "a"}, {}, "give shard"),
        ({"shards": 2, "replica": "a", "shard": 2}, {}, "give 0 to 1"),
        ({"shards": 2, "replica": "a", "shard": -1}, {}, "give 0 to 1"),
        ({"shard": 1}, {}, "give 0 to 0"),
        ({"shards": 3, "replica": "a"}, TORCHRUN, "shards=3 of replica 'a' contradicts"),
        ({"shard": 0, "replica": "a"}, TORCHRUN, "shard=0 of replica 'a' contradicts"),
        ({"replica": "a"}, TORCHRUN | {"RANK": "2"}, "RANK=2 is not below"),
        ({"replica": "a"}, TORCHRUN | {"RANK": "x"}, "RANK='x' is no number"),
    ],
)
def test_contradictions_are_named(found: dict[str, Any], environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        part_of(found, environment)


def test_replicas_of_several_processes_are_refused_before_anything_starts() -> None:
    check_supported(Part("a", 0, 1))
    with pytest.raises(ConfigError, match=r"shards=2: .* leave out shards"):
        FTLib.init(replica="a", shard=0, shards=2)
