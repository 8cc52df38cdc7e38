"""A manager's arguments: where replicas meet, and what is refused with the remedy; names that need no others."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from ftlib import ConfigError
from ftlib.torchft.data import DistributedSampler
from ftlib.torchft.manager import ExceptionWithTraceback, ManagerClient, WorldSizeMode
from ftlib.torchft.optim import OptimizerWrapper
from ftlib.torchft.replica.meeting import settings_of
from ftlib.torchft.utils import get_stream_context, record_event, synchronize
from tests.harness.company import at_once

from .replicas import manager, settle

TOLD = {"FTLIB_INTRODUCERS": "127.0.0.1:1"}


@pytest.mark.parametrize("url", ["file:///shared/dir", "redis://host:6379/0", "etcd://host:2379"])
def test_a_storage_is_where_the_replicas_meet(url: str) -> None:
    expected = {"min_size": 2, "consensus": "shared_storage", "storage": url}
    assert settings_of(url, {"min_size": 2}, {}) == expected
    assert settings_of(None, {"min_size": 2}, {"TORCHFT_LIGHTHOUSE": url}) == expected


def test_a_lighthouse_is_ignored_with_one_warning_where_something_else_says_how_to_meet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "ftlib"):
        assert settings_of("http://light:1", {"job": "a"}, TOLD) == {"job": "a"}
        assert settings_of("http://light:1", {"job": "a"}, {**TOLD, "FTLIB_JOB": "b"}) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "Manager: the lighthouse http://light:1 is ignored: the replicas meet as ftlib's own settings say"
    ]


@pytest.mark.parametrize(("url", "text"), [("http://light:2", "http://light:2 is a lighthouse"), (None, "nothing says how")])
def test_without_a_place_to_meet_the_remedy_is_named(url: str | None, text: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=text) as found:
        settings_of(url, {}, {})
    assert "ftlib run" in str(found.value) and "file:///" in str(found.value)


@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        ({"world_size": None}, {"WORLD_SIZE": "four"}, "WORLD_SIZE='four'"),
        ({"rank": 1}, {}, "rank=1 of world_size=1"),
        ({"min_replica_size": 0}, {}, "min_replica_size=0"),
        *(({}, {"TORCHFT_TIMEOUT_SEC": said}, f"TORCHFT_TIMEOUT_SEC='{said}' must be") for said in ("soon", "-5", "0", "nan")),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], variables: dict[str, str], text: str, monkeypatch: Any) -> None:
    settle(monkeypatch, **variables)
    with pytest.raises(ConfigError, match=text):
        manager(1, **arguments)


@pytest.mark.parametrize("said", ["inf", "1e300"])
def test_a_manager_waits_twenty_days_at_most(said: str, monkeypatch: Any) -> None:
    """What is longer cannot be waited for by all that waits here."""
    settle(monkeypatch, TORCHFT_TIMEOUT_SEC=said)
    each = manager(1, quorum_timeout=timedelta.max, connect_timeout=timedelta(days=200_000))
    assert each._timeout == each._quorum_timeout == each._connect_timeout == timedelta(days=20)
    try:
        each.start_quorum()
        assert each.should_commit()
    finally:
        each.shutdown()


def test_a_manager_waits_for_nobody_until_the_first_step(monkeypatch: Any) -> None:
    settle(monkeypatch)
    each = manager(5, store_addr="nowhere", store_port=1, hostname="here", port=0, replica_id="a", quorum_retries=3)
    assert each.num_participants() == 0 and each.participating_rank() is None and not each.is_participating()
    assert each.current_step() == each.batches_committed() == 0 and each._use_async_quorum
    for call in (each.wait_quorum, each.should_commit, lambda: each.allreduce(torch.ones(1))):
        with pytest.raises(ConfigError, match="start_quorum"):
            call()
    each.shutdown()
    with pytest.raises(Exception, match="shut down"):
        each.start_quorum()


def test_its_state(monkeypatch: Any) -> None:
    settle(monkeypatch)
    each = manager(1, timeout=timedelta(milliseconds=50))
    loaded: list[Any] = []
    each.set_state_dict_fns(loaded.append, lambda: {"weights": 1})
    each.register_state_dict_fn("more", loaded.append, lambda: 2)
    each.load_state_dict({"step": 3, "batches_committed": 7})
    tree = each._manager_state_dict()
    assert tree["torchft"] == each.state_dict() == {"step": 3, "batches_committed": 7}
    assert tree["user"] == {"set_state_dict_fns": {"weights": 1}, "more": 2}
    with pytest.raises(ConfigError, match="'more'"):
        each.register_state_dict_fn("more", loaded.append, lambda: 2)
    with pytest.raises(ConfigError, match="more"):
        each._load_manager_state_dict({"user": {"set_state_dict_fns": 0}, "torchft": tree["torchft"]})
    assert not loaded
    each.disallow_state_dict_read()
    with pytest.raises(ConfigError, match="allow it first"):
        each._manager_state_dict()
    with pytest.raises(Exception, match="was not taken back"):
        at_once(each._manager_state_dict)
    each.allow_state_dict_read()
    assert at_once(each._manager_state_dict) == [tree]


def test_wrapped_futures_report_what_fails(monkeypatch: Any) -> None:
    settle(monkeypatch)
    each = manager(1)
    good: torch.futures.Future[int] = torch.futures.Future()
    wrapped = each.wrap_future(good, 0)
    good.set_result(5)
    assert wrapped.wait() == 5 and each.errored() is None
    bad: torch.futures.Future[int] = torch.futures.Future()
    wrapped = each.wrap_future(bad, 9)
    bad.set_exception(ValueError("broken"))
    assert wrapped.wait() == 9 and "broken" in str(each.errored())
    slow: torch.futures.Future[int] = torch.futures.Future()
    assert each.wrap_future(slow, 8, timedelta(milliseconds=10)).wait() == 8
    assert isinstance(each.errored().original_exception, TimeoutError)
    assert each.wrap_future(torch.futures.Future(), 7, timedelta()).wait() == 7


def test_what_has_no_counterpart_says_so() -> None:
    with pytest.raises(ConfigError, match="no manager server"):
        ManagerClient("host:1")
    assert {mode.name for mode in WorldSizeMode} == {"DYNAMIC", "FIXED_WITH_SPARES"}
    assert isinstance(ExceptionWithTraceback(ValueError("x")).original_exception, ValueError)


def test_samples_are_cut_into_shares_of_all_processes_that_may_come() -> None:
    data: Any = list(range(12))
    sampler = DistributedSampler(data, replica_rank=1, num_replica_groups=3, group_rank=1, num_replicas=2, shuffle=False)
    assert (sampler.global_rank, sampler.global_world_size) == (3, 6) and list(sampler) == [3, 9]
    assert DistributedSampler(data, replica_rank=2, num_replica_groups=3).global_rank == 2
    with pytest.raises(ConfigError, match="num_replica_groups=3"):
        DistributedSampler(data, replica_rank=3, num_replica_groups=3)


def test_an_optimizer_is_the_one_inside() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    inside = torch.optim.SGD([parameter], lr=1.0)
    optimizer = OptimizerWrapper(None, inside)  # type: ignore[arg-type]
    assert optimizer.param_groups is inside.param_groups and optimizer.state is inside.state
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(inside.param_groups) == 2
    with pytest.raises(ConfigError, match="closure"):
        optimizer.step(lambda: 0.0)


def test_streams_without_an_accelerator() -> None:
    with get_stream_context(None):
        record_event()
        synchronize()
