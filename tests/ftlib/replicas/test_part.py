"""Which part of which replica a process is."""

from __future__ import annotations

from typing import Any

import pytest

from ftlib import ConfigError
from ftlib.settings.config import resolve
from ftlib.settings.replicas import Part, part_of

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
    assert alone.consensus.initial_size == 2, "processes of one replica"
    sizes = {"replica": "a", "shards": 2, "initial_size": 3, "max_size": 4, "min_size": 2}
    counted = resolve(sizes, None, TORCHRUN)
    assert (counted.consensus.initial_size, counted.consensus.max_size, counted.min_size) == (6, 8, 2)


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


@pytest.mark.parametrize("setting", [{"rejoin": True}, {"straggler_deadline": 5.0}, {"policy": "any"}, {"recovery": "live"}])
def test_what_replicas_of_several_processes_cannot_do_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="and these have 2"):
        resolve({"replica": "a", "shard": 0, "shards": 2, **setting}, None, {})


def test_joiners_get_the_state_while_the_others_wait() -> None:
    """Else one process of a replica could come in with one call, and its mate with the next."""
    assert resolve({"replica": "a", "shard": 0, "shards": 2}, None, {}).recovery == "wait"


def test_members_agree_how_many_shards_there_are() -> None:
    two, three = (resolve({"replica": "a", "shard": 0, "shards": count}, None, {}).consensus.agreement for count in (2, 3))
    assert two != three
    assert resolve({}, None, {}).consensus.agreement + " shards=2" == two
