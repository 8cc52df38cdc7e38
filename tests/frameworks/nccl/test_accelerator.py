"""NCCL as an accelerator: where it can be had, what the ranks of a view tell each other, and why they may do without."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping

import pytest
import torch

from ftlib.core.calls.call import Kind
from ftlib.core.tensors.targets import Layouts, Targets
from ftlib.errors import ConfigError
from ftlib.frameworks import GroupSpec, framework_by_name
from ftlib.frameworks.accelerators.nccl import accelerator as module
from ftlib.frameworks.accelerators.nccl.accelerator import NcclAccelerator, check_environment, check_ranks
from ftlib.frameworks.accelerators.nccl.gpus import Gpus
from ftlib.frameworks.accelerators.nccl.library import Unavailable
from ftlib.frameworks.accelerators.nccl.results import Result
from tests.frameworks.nccl.device import FLOATS, RehearsedGpus
from tests.frameworks.nccl.fake import FakeNcclFramework
from tests.frameworks.nccl.scripted import HANDLE, Scripted, scripted
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.gpu import missing
from tests.harness.late_device import LateDevice


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    for name in ("NCCL_COMM_BLOCKING", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    with scripted() as (nccl, _, _):
        yield nccl


def spec(rank: int, size: int = 2) -> GroupSpec:
    return GroupSpec("view", 1, rank, size, {}, 20.0)


def started(nccl: Scripted) -> NcclAccelerator:
    accelerator = NcclAccelerator(nccl.library, RehearsedGpus("GPU-1"))
    accelerator.start("127.0.0.1")
    eventually(lambda: "ncclCommAbort" in nccl.names, "the end of the first use")
    return accelerator


# --- start -------------------------------------------------------------------------------------------------------------


def test_the_first_use_is_a_communicator_of_one_rank_once_a_process(nccl: Scripted) -> None:
    accelerator = started(nccl)
    accelerator.start("127.0.0.1")
    first = [("ncclGetUniqueId",), ("ncclCommInitRankConfig", 1, bytes(range(128)), 0), ("ncclCommAbort", HANDLE)]
    assert nccl.log == first


def test_nobody_waits_for_the_first_use(nccl: Scripted) -> None:
    back = nccl.hang["ncclCommInitRankConfig"] = threading.Event()
    NcclAccelerator(nccl.library, RehearsedGpus("GPU-1")).start("127.0.0.1")
    back.set()
    eventually(lambda: "ncclCommAbort" in nccl.names, "the end of the first use")


def test_an_answer_that_never_comes_has_a_deadline(nccl: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_ANSWER", 0.1)
    back = nccl.hang["ncclGetUniqueId"] = threading.Event()
    with pytest.raises(Unavailable, match=r"has not answered within 0\.1 s"):
        NcclAccelerator(nccl.library, RehearsedGpus("GPU-1")).start("127.0.0.1")
    back.set()
    eventually(lambda: "ncclCommAbort" in nccl.names, "the end of the first use")


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("function", ["ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommAbort"])
def test_a_first_use_that_fails_is_the_reason(nccl: Scripted, function: str, code: int) -> None:
    """At once, or as the next group is built."""
    nccl.codes[function] = code
    accelerator = NcclAccelerator(nccl.library, RehearsedGpus("GPU-1"))

    def use() -> None:
        accelerator.start("127.0.0.1")
        eventually(lambda: accelerator._first is not None and accelerator._first.error, "the reason")
        accelerator.facts(spec(0))

    with pytest.raises(Unavailable, match=f"first use of NCCL has failed: {function}.*what NCCL said last"):
        use()


def test_a_first_use_in_progress_for_ever_has_a_deadline(nccl: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_BUILD", 0.1)
    nccl.state = Result.IN_PROGRESS
    accelerator = NcclAccelerator(nccl.library, RehearsedGpus("GPU-1"))
    accelerator.start("127.0.0.1")
    eventually(lambda: accelerator._first is not None and accelerator._first.error, "the reason")
    with pytest.raises(Unavailable, match=r"still in progress after 0\.1 s"):
        accelerator.facts(spec(1))


@pytest.mark.parametrize(("given", "then"), [(None, "=lo"), ("eth7", "eth7")])
def test_the_interface_is_that_of_the_address(
    nccl: Scripted, monkeypatch: pytest.MonkeyPatch, given: str | None, then: str
) -> None:
    if given:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", given)
    started(nccl)
    assert module.os.environ["NCCL_SOCKET_IFNAME"] == then


@pytest.mark.parametrize("value", ["1", "yes"])
def test_blocking_calls_are_refused(nccl: Scripted, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """By the framework, too: it is the program's mistake, and nothing is left behind."""
    check_environment({"NCCL_COMM_BLOCKING": "0"})
    monkeypatch.setenv("NCCL_COMM_BLOCKING", value)
    framework = framework_by_name("nccl")
    with pytest.raises(ConfigError, match=f"NCCL_COMM_BLOCKING={value} makes .* block.*: unset NCCL_COMM_BLOCKING"):
        framework.start("127.0.0.1")
    monkeypatch.delenv("NCCL_COMM_BLOCKING")
    facts = framework.start("127.0.0.1")
    framework.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(facts["store"].rpartition(":")[2])))


def test_without_a_gpu_everything_goes_by_gloo_and_one_warning_says_why(caplog: pytest.LogCaptureFixture) -> None:
    if not missing():
        pytest.skip("there is a GPU")
    frameworks = [framework_by_name("nccl") for _ in range(2)]
    facts = [framework.start("127.0.0.1") for framework in frameworks]
    with caplog.at_level(logging.WARNING, "ftlib"):
        for epoch in (1, 2):
            other = threading.Thread(target=frameworks[1].rebuild, args=(GroupSpec(f"v{epoch}", epoch, 1, 2, facts[0], 20.0),))
            other.start()
            group = frameworks[0].rebuild(GroupSpec(f"v{epoch}", epoch, 0, 2, facts[0], 20.0))
            other.join(TIMEOUT)
            works = [framework.group.allreduce(torch.ones(3)) for framework in frameworks if framework.group]
            assert [work.wait(TIMEOUT) for work in works] == [True, True]
            assert not group.accelerated
            eventually(lambda: len(caplog.messages) >= 2, "the warnings")
            for framework in frameworks:
                assert framework.group is not None
                framework.group.close()
    for framework in frameworks:
        framework.close()
    assert len(caplog.messages) == 2, "one in each process, here two in one"
    for rank, text in enumerate(sorted(caplog.messages)):
        assert text.startswith(f"rank {rank} of 2 (epoch 1) has no nccl accelerator: rank 0 has no nccl accelerator: ")
        assert "it could not be started: torch sees no CUDA device; everything goes by Gloo" in text


# --- facts and ranks ---------------------------------------------------------------------------------------------------


def test_only_rank_0_makes_an_id(nccl: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = started(nccl)
    monkeypatch.setenv("NCCL_HOSTID", "machine 1")
    theirs = {"gpu": "GPU-1", "host": "machine 1", "version": "2.28.9"}
    assert accelerator.facts(spec(1)) == theirs
    assert accelerator.facts(spec(0)) == {"id": bytes(range(128)).hex(), **theirs}
    monkeypatch.delenv("NCCL_HOSTID")
    assert accelerator.facts(spec(1))["host"] == module._BOOT.read_text().strip()


def told(gpu: str, host: str = "h", version: str = "2.28.9") -> Mapping[str, str]:
    return {"gpu": gpu, "host": host, "version": version}


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ([told("a"), told("b"), told("c")], ""),
        ([told("a", "h"), told("a", "i")], ""),
        ([told("a"), told("b"), told("a")], "ranks 0 and 2 use the same GPU, a, .*CUDA_VISIBLE_DEVICES"),
        ([told("b"), told("a"), told("a"), told("a")], "ranks 1, 2 and 3 use the same GPU"),
        (
            [told("a"), told("b", version="2.30.7"), told("c")],
            r"different versions of NCCL: 2\.28\.9 \(ranks 0 and 2\) and 2\.30\.7 \(rank 1\); install the same",
        ),
    ],
)
def test_ranks_that_nccl_cannot_connect_are_named(facts: list[Mapping[str, str]], says: str) -> None:
    if not says:
        check_ranks(facts)
        return
    with pytest.raises(Unavailable, match=says):
        check_ranks(facts)


def test_nothing_is_begun_where_ranks_cannot_be_connected(nccl: Scripted) -> None:
    accelerator = started(nccl)
    nccl.log.clear()
    same = {**accelerator.facts(spec(1)), "id": "00" * 128}
    with pytest.raises(Unavailable, match="ranks 0 and 1 use the same GPU"):
        accelerator.begin(spec(1), [same, same], lambda: None)
    assert nccl.log == []
    decided = threading.Event()
    made = accelerator.begin(spec(1), [{**same, "gpu": "GPU-0"}, same], decided.set)
    assert decided.wait(TIMEOUT) and made.ready
    assert ("ncclCommInitRankConfig", 2, bytes(128), 1) in nccl.log


def test_a_group_of_two_ranks_on_one_gpu_goes_by_gloo(caplog: pytest.LogCaptureFixture) -> None:
    """And says so."""
    frameworks = [FakeNcclFramework() for _ in range(2)]
    facts = [framework.start("127.0.0.1") for framework in frameworks]
    for framework in frameworks:
        framework._accelerator._gpu = framework._accelerator._gpu._replace(uuid="GPU-1")  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "ftlib"):
        other = threading.Thread(target=frameworks[1].rebuild, args=(GroupSpec("v", 1, 1, 2, facts[0], 20.0),))
        other.start()
        group = frameworks[0].rebuild(GroupSpec("v", 1, 0, 2, facts[0], 20.0))
        other.join(TIMEOUT)
        eventually(lambda: len(caplog.messages) >= 2, "the warnings")
    for framework in frameworks:
        framework.close()
    assert not group.accelerated
    assert all("ranks 0 and 1 use the same GPU, GPU-1" in text for text in caplog.messages)


# --- tensors -----------------------------------------------------------------------------------------------------------


def test_it_takes_contiguous_tensors_on_a_gpu(nccl: Scripted) -> None:
    accelerator = NcclAccelerator(nccl.library, RehearsedGpus("GPU-1"))
    assert all(accelerator.takes(torch.ones(4, dtype=dtype)) for dtype in FLOATS)
    assert not accelerator.takes(torch.ones(4, 4).t())
    assert not accelerator.takes(torch.ones(4, dtype=torch.int32)), "not on the device here"
    assert not NcclAccelerator(nccl.library, Gpus()).takes(torch.ones(4)), "on the CPU"


class _Elsewhere(RehearsedGpus):
    def place(self, tensor: torch.Tensor) -> str:
        return "cuda:3" if tensor.dtype is torch.float64 else super().place(tensor)


def test_tensors_on_another_gpu_end_its_use(nccl: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    accelerator = NcclAccelerator(nccl.library, _Elsewhere("GPU-1"))
    accelerator.start("127.0.0.1")
    assert accelerator.place(torch.ones(1)) == "rehearsal:0" and accelerator.place(torch.ones(1, dtype=torch.int8)) == ""
    facts = accelerator.facts(spec(1))
    decided = threading.Event()
    made = accelerator.begin(spec(1), [{**facts, "gpu": "GPU-0", "id": "00" * 128}, facts], decided.set)
    assert decided.wait(TIMEOUT) and made.ready
    with caplog.at_level(logging.WARNING, "ftlib"):
        for _ in range(2):
            assert accelerator.place(torch.ones(1, dtype=torch.float64)) == "cuda:3"
    assert len(caplog.messages) == 1 and "call torch.cuda.set_device before FTLib.init" in caplog.messages[0]
    assert not made.ready and "cuda:3" in made.trouble
    with pytest.raises(Unavailable, match="cuda:3"):
        accelerator.facts(spec(1))


# --- a CUDA graph ------------------------------------------------------------------------------------------------------


class _Capturing(LateDevice):
    capturing = False

    def check_capture(self) -> None:
        if self.capturing:
            raise ConfigError("a CUDA graph is captured on the current stream")


def test_no_call_begins_while_a_graph_is_captured() -> None:
    """Not even one whose layout is known; calls on the CPU may."""
    device = _Capturing(1, lambda tensor: tensor.dtype is torch.float32)
    layouts = Layouts(framework_by_name("nccl"), 1 << 20)

    def call(dtype: torch.dtype) -> None:
        tensor = torch.ones(3, dtype=dtype)
        layouts.layout(Kind.AVERAGE.value, Targets([tensor], [tensor]), "SUM", mean=True)

    with device.placed():
        call(torch.float32)
        device.capturing = True
        with pytest.raises(ConfigError, match="CUDA graph"):
            call(torch.float32)
        call(torch.float64)
        device.capturing = False
        call(torch.float32)
