"""Runs a case: starts its workers, on this host or on hosts of a slow link, and puts together what they have measured."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data_parallel.loops import Case
from ftlib.common.processes import die_with_parent
from tests.harness.cluster import bind
from tests.harness.network import Network
from tests.harness.nursery import ROOT, Stuck

WORKER = "benchmarks.data_parallel.worker"
LIMIT = 400.0
"""Seconds for one run."""
PORT, STORE = 7411, 7412
"""Of ftlib's members and of torch's store, on hosts of their own."""


class Found:
    """What the workers of one case have measured."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self.lines = sorted(lines, key=lambda line: line["rank"])

    def slowest(self, loop: str) -> list[float]:
        """Seconds of each step, at the slowest worker."""
        return [max(each) for each in zip(*(line["seconds"][loop] for line in self.lines), strict=True)]

    def ratios(self, loop: str, other: str) -> list[float]:
        """Of each round."""
        return [one / both for one, both in zip(self.slowest(loop), self.slowest(other), strict=True)]

    def differences(self, loop: str, other: str) -> list[float]:
        """Of each round, seconds."""
        return [one - both for one, both in zip(self.slowest(loop), self.slowest(other), strict=True)]

    def busy(self, loop: str) -> float:
        """Seconds of the processor of a step, on the training thread: the median of all steps of all workers."""
        return statistics.median(value for line in self.lines for value in line["busy"][loop])

    def faults(self, loop: str) -> list[int]:
        """Page faults of each step of all workers, the second half of the steps: the first still fill what is kept."""
        return [count for line in self.lines for count in line["faults"][loop][len(line["faults"][loop]) // 2 :]]


def quartiles(values: Sequence[float], unit: str = "", places: int = 2) -> str:
    """``median [first quartile - third]``."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{places}f}{unit} [{low:.{places}f} - {high:.{places}f}]"


def run(case: Case, workers: int, python: str = sys.executable, module: str = WORKER) -> Found:
    """On this host. ``module``: what a worker runs."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        case = dataclasses.replace(case, store=f"127.0.0.1:{store.getsockname()[1]}")
        pairs = [bind() for _ in range(workers)]
        for held in (held for pair in pairs for held in pair):
            stack.enter_context(held)
        addresses = ["{}:{}".format(*tcp.getsockname()[:2]) for _, tcp in pairs]
        common = {
            "FTLIB_JOB": f"benchmark-{secrets.token_hex(6)}",
            "FTLIB_INTRODUCERS": ",".join(addresses),
            "FTLIB_INITIAL_SIZE": str(workers),
        }
        store.close()

        def own(index: int) -> tuple[list[str], dict[str, str], list[int]]:
            descriptors = [held.fileno() for held in pairs[index]]
            return [], {**common, "FTLIB_SOCKET_FDS": ",".join(map(str, descriptors))}, descriptors

        return _run(case, workers, [python, "-m", module], own)


def run_linked(case: Case, workers: int, bits: float) -> Found:
    """Each worker on a host of its own, whose link carries so many bits a second each way. Needs root, iproute2 and tbf."""
    with Network(workers) as hosts:
        for host in hosts:
            host.run(*f"tc qdisc add dev eth0 root tbf rate {int(bits)}bit burst 128kb latency 500ms".split())
        introducer = f"{hosts[0].v4}:{PORT}"
        case = dataclasses.replace(case, store=f"{hosts[0].v4}:{STORE}")
        common = {
            "FTLIB_JOB": "benchmark-link",
            "FTLIB_SECRET": secrets.token_hex(16),
            "FTLIB_INTRODUCERS": introducer,
            "FTLIB_INITIAL_SIZE": str(workers),
            "GLOO_SOCKET_IFNAME": "eth0",
        }

        def own(index: int) -> tuple[list[str], dict[str, str], list[int]]:
            return [hosts[index].name], {**common, "FTLIB_BIND": f"{hosts[index].v4}:{PORT}"}, []

        return _run(case, workers, [sys.executable, "-m", WORKER], own)


def _run(
    case: Case, workers: int, command: Sequence[str], own: Callable[[int], tuple[list[str], dict[str, str], list[int]]]
) -> Found:
    """``own``: further arguments, variables and descriptors of one."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    parent = os.getpid()
    with tempfile.TemporaryDirectory(prefix="ftlib-parallel-") as directory:
        outputs = [Path(directory) / f"{index}.out" for index in range(workers)]
        errors = [Path(directory) / f"{index}.err" for index in range(workers)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for index in range(workers):
                words, variables, descriptors = own(index)
                with outputs[index].open("wb") as output, errors[index].open("wb") as error:
                    processes.append(
                        subprocess.Popen(
                            [*command, str(index), str(workers), json.dumps(dataclasses.asdict(case)), *words],
                            env={**environment, **variables},
                            stdin=subprocess.DEVNULL,
                            stdout=output,
                            stderr=error,
                            pass_fds=descriptors,
                            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
                        )
                    )
            _ended(processes, errors)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
        lines = [line for path in outputs for line in path.read_text().splitlines() if line.startswith("{")]
        return Found([json.loads(line) for line in lines])


def _ended(processes: Sequence[subprocess.Popen[bytes]], errors: Sequence[Path]) -> None:
    deadline = time.monotonic() + LIMIT
    while any(process.poll() is None for process in processes):
        failed = [index for index, process in enumerate(processes) if process.poll()]
        if failed or time.monotonic() > deadline:
            first = failed[0] if failed else 0
            text = errors[first].read_text(errors="replace").strip()[-2000:]
            raise Stuck(f"worker {first}: {f'exit code {processes[first].returncode}' if failed else 'not in time'}: {text}")
        time.sleep(0.05)  # between two looks


@contextlib.contextmanager
def lighthouse(python: str, replicas: int) -> Iterator[str]:
    """The address of a lighthouse for so many replicas of torchft's, by default settings but for a short wait for who joins."""
    code = (
        "import sys; from torchft.coordination import LighthouseServer as Server; "
        "server = Server(bind='127.0.0.1:0', min_replicas=int(sys.argv[1]), join_timeout_ms=100); "
        "print(server.address(), flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([python, "-c", code, str(replicas)], text=True, **pipes)  # type: ignore[call-overload]
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip().rpartition(':')[2]}"
    finally:
        server.kill()
        server.wait()
