"""Deadlines of futures, blocks and streams; works that are done; what a checkpoint transport says."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.futures import Future

from ftlib import ConfigError
from ftlib.torchft import checkpointing, futures
from ftlib.torchft.checkpointing.pg_transport import PGTransport
from ftlib.torchft.checkpointing.transport import check_transport
from ftlib.torchft.work import _DummyWork
from tests.harness.basics import TIMEOUT, eventually

SHORT = timedelta(seconds=0.01)
LONG = timedelta(seconds=30)


def made(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def test_a_future_that_is_late_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"did not complete within 0:00:00\.01"):
        futures.future_wait(Future(), SHORT)
    with pytest.raises(TimeoutError, match="did not complete within"):
        futures.future_timeout(Future(), SHORT).wait()
    late: Future[int] = Future()
    timed = futures.future_timeout(late, SHORT)
    with pytest.raises(TimeoutError):
        timed.wait()
    late.set_result(1)  # nobody minds


@pytest.mark.parametrize("longest", [timedelta.max, timedelta(days=200_000)])
def test_a_deadline_further_than_the_system_waits_is_none(longest: timedelta) -> None:
    """And it keeps no other from being kept."""
    with futures.context_timeout(lambda: None, longest):
        eventually(futures.future_timeout(Future(), SHORT).done, "it ends")
        late: Future[int] = Future()
        threading.Timer(0.05, late.set_result, [1]).start()
        assert futures.future_wait(late, longest) == 1


def test_a_deadline_is_kept_once_a_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = futures.start_task, threading.Event()

    def refuse_once(name: str, function: Callable[[], None]) -> None:
        if refused.is_set():
            start(name, function)
            return
        refused.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(futures, "start_task", refuse_once)
    timed = futures.future_timeout(Future(), SHORT)
    eventually(timed.done, "it ends, a little later")
    assert refused.is_set()


@pytest.mark.parametrize("before", [True, False])
def test_a_future_in_time_hands_on_what_it_has(before: bool) -> None:
    for value in (1, ValueError("broken")):
        future: Future[Any] = made(value) if before else Future()
        timed = futures.future_timeout(future, LONG)
        if not before:
            future.set_exception(value) if isinstance(value, Exception) else future.set_result(value)
        for wait in (timed.wait, lambda future=future: futures.future_wait(future, LONG)):
            if isinstance(value, Exception):
                with pytest.raises(ValueError, match="broken"):
                    wait()
            else:
                assert wait() == value


def test_a_block_that_takes_too_long_is_told_and_one_that_hangs_holds_up_no_other() -> None:
    told, release = threading.Event(), threading.Event()
    with futures.context_timeout(lambda: release.wait(TIMEOUT) and None, SHORT):
        time.sleep(0.05)  # its function hangs by now
        with futures.context_timeout(told.set, SHORT):
            assert told.wait(TIMEOUT)
    release.set()
    missed = threading.Event()
    with futures.context_timeout(missed.set, timedelta(seconds=3)):
        pass
    assert not missed.wait(3.3)
    futures.stream_timeout(missed.set, SHORT)
    if not torch.accelerator.is_available():
        assert not missed.wait(0.05)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_deadlines_in_a_forked_process() -> None:
    with futures.context_timeout(lambda: None, LONG):  # the thread that watches is not there in the child
        child = os.fork()
        if not child:
            told = threading.Event()
            with futures.context_timeout(told.set, SHORT):
                os._exit(0 if told.wait(TIMEOUT) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_dummy_work_is_done() -> None:
    work = _DummyWork([1])
    assert work.wait() and work.wait(SHORT) and work.is_completed() and work.get_future().wait() == [1]


def test_a_transport_says_how_the_state_comes(caplog: pytest.LogCaptureFixture) -> None:
    http = checkpointing.HTTPTransport(timeout=LONG, num_chunks=0)
    group: PGTransport[Any] = PGTransport(None, timeout=LONG, device="cpu", state_dict=dict)
    for silent in (None, http):
        check_transport(silent)
    assert isinstance(group, checkpointing.CheckpointTransport) and http.metadata() == ""
    http.disallow_checkpoint()
    http.shutdown(wait=True)
    with pytest.raises(ConfigError, match="a Manager gives a joining replica"):
        http.send_checkpoint([1], 3, {}, LONG)
    with pytest.raises(ConfigError, match="a Manager gives a joining replica"):
        group.recv_checkpoint(0, "", 3, LONG)
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "ftlib"):
        for told in (object(), group):
            check_transport(told)
    assert [record.getMessage() for record in caplog.records] == [
        f"Manager: the checkpoint transport {name} is not used: a joining replica gets the state over HTTP"
        for name in ("object", "PGTransport")
    ]
