"""What a process raises that is short of something, and what it raises otherwise."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from ftlib.common.threads import Threads
from ftlib.core.calls.learner import NoFollowing
from ftlib.core.plane.plane import Plane
from ftlib.recovery.joiner.http_transport import FetchError, SnapshotOffer
from ftlib.recovery.joiner.limits import RecoveryLimits
from ftlib.recovery.joiner.round import Broken, Round
from ftlib.recovery.layout.requests import in_words, is_short
from tests.harness.basics import TIMEOUT

LARGE = 1 << 28
"""Bytes that are not to be had."""


def tensors() -> object:
    return torch.empty(LARGE, dtype=torch.uint8)


def objects() -> object:
    return bytearray(LARGE)


def threads() -> None:
    """Their stacks take address space, too; those of threads that have ended may be used again."""
    over = threading.Event()
    for number in range(1000):
        Threads().thread(over.wait, f"no. {number}").start()


def raised(kind: str, action: Callable[[], object], told: multiprocessing.SimpleQueue[tuple[bool, str]]) -> None:
    """In a process of its own, which has only what it has by now."""
    if kind == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    else:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + (4 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        action()
    except Exception as error:  # noqa: BLE001 - that is the question
        told.put((is_short(error), in_words(error)))
    else:
        told.put((False, "nothing"))


@pytest.mark.parametrize(
    ("kind", "action"),
    [("memory", tensors), ("memory", objects), ("memory", threads), ("descriptors", os.pipe)],
    ids=["tensors", "objects", "threads", "descriptors"],
)
def test_a_process_that_is_short_of_it_says_so(kind: str, action: Callable[[], object]) -> None:
    context = multiprocessing.get_context("fork")
    told: multiprocessing.SimpleQueue[tuple[bool, str]] = context.SimpleQueue()
    process = context.Process(target=raised, args=(kind, action, told), daemon=True)
    process.start()
    process.join(TIMEOUT)
    assert not told.empty()
    short, words = told.get()
    assert short, words


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("cudaMalloc of 67108864 bytes"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError(f"unable to mmap 4096 bytes from file </torch_1>: {os.strerror(errno.ENOMEM)} (12)"),
        RuntimeError(f"unable to open shared memory object </torch_1> in read-write mode: {os.strerror(errno.EMFILE)} (24)"),
        RuntimeError(os.strerror(errno.EAGAIN)),
    ],
    ids=str,
)
def test_as_torch_says_it(error: Exception) -> None:
    assert is_short(error)


def test_a_defect_is_no_shortage() -> None:
    def recur() -> None:
        recur()

    model = nn.Linear(2, 2)
    for defect in (lambda: model(torch.ones(3)), lambda: model.load_state_dict({}), recur, lambda: {}["name"]):
        with pytest.raises((RuntimeError, KeyError)) as caught:
            defect()  # type: ignore[no-untyped-call]
        assert not is_short(caught.value)


@pytest.mark.parametrize(
    ("error", "again", "logged"),
    [
        (RuntimeError("can't start new thread"), True, False),
        (FetchError("refused"), True, False),
        (NoFollowing("nobody is left"), True, False),
        (RuntimeError("the optimizer raised"), False, True),
        (TypeError("a defect"), False, True),
    ],
    ids=str,
)
def test_a_round_says_whether_its_error_would_come_again(
    error: Exception, again: bool, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    offer, limits = SnapshotOffer(1, 0, b"", ((0, 1),)), RecoveryLimits(patience=1.0, pending=1)
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, (), offer, limits)
    one._guarded(Mock(side_effect=error))
    assert isinstance(one.error, NoFollowing) and str(error) in str(one.error)
    assert isinstance(one.error, Broken) is not again
    assert [record.exc_info is not None for record in caplog.records] == [True] * logged
