"""How much code of ours one call runs through: distinct functions and files, hops, callbacks, notices, and CPU time.

    python -m benchmarks walk --beside ../old-checkout

Three workers average a model of a million parameters over Gloo. The profiler of Python notes every function of ``ftlib`` and
``consensus`` that the first worker's training thread enters in one healthy call, and in one in which a peer is killed. The CPU
time is that of the training thread in a call of 4 KB (``time.thread_time``), less that of the same operation on the bare
process group, in turns. ``--beside`` does all of it for another checkout as well; its workers import that one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 30
COUNTS = ("functions", "files", "calls", "hops", "callbacks", "notices")
TRACED = 9
"""Healthy calls that are traced; the one with the median number of functions is shown."""
BLOCK, BLOCKS = 80, 50
"""Calls in one stretch whose time is taken, and stretches of each kind."""
VICTIM_WAITS = 0.1
"""Seconds after the others' entry at which the victim is killed."""
_PARTS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""A comprehension is a part of the function it stands in, as Python 3.12 sees it."""
NOTICE = "progress"
"""The function of the consensus by which the data plane tells where it is."""


class Trace:
    """Functions of ours that one thread enters while ``on``."""

    def __init__(self, root: Path) -> None:
        self._ours = (f"{root}/ftlib/", f"{root}/consensus/")
        self._root = len(str(root)) + 1
        self.functions: Counter[CodeType] = Counter()
        self.hops = self.callbacks = 0
        self.called_back: Counter[str] = Counter()

    def run(self, task: Callable[[], object]) -> dict[str, Any]:
        """What one run of ``task`` went through."""
        self.functions.clear()
        self.called_back.clear()
        self.hops = self.callbacks = 0
        gc.disable()  # what it collects is not part of the call
        sys.setprofile(self._entered)
        try:
            task()
        finally:
            sys.setprofile(None)
            gc.enable()
        names = {f"{self._file(code)}:{code.co_qualname}": count for code, count in self.functions.items()}
        return {
            "functions": len(self.functions),
            "files": len({code.co_filename for code in self.functions}),
            "calls": sum(self.functions.values()),
            "hops": self.hops,
            "callbacks": sum(self.called_back.values()),
            "notices": sum(count for code, count in self.functions.items() if self._is_notice(code)),
            "names": names,
            "called_back": dict(self.called_back),
        }

    def _entered(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in _PARTS or not code.co_filename.startswith(self._ours):
            return
        self.functions[code] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._ours):
            caller = caller.f_back
        if caller is None:
            return
        if caller.f_code.co_filename != code.co_filename:
            self.hops += 1
        if _is_callback(caller, code):
            self.called_back[f"{self._file(caller.f_code)}:{caller.f_code.co_qualname} -> {code.co_qualname}"] += 1

    def _file(self, code: CodeType) -> str:
        return code.co_filename[self._root :]

    def _is_notice(self, code: CodeType) -> bool:
        return code.co_name == NOTICE and self._file(code) == "consensus/membership.py"


def _is_callback(caller: FrameType, code: CodeType) -> bool:
    """Whether ``caller`` ran a function that somebody had handed to it: it does not know it by its name, or as a method."""
    name = code.co_name
    if name.startswith("__"):
        return False
    if name not in caller.f_code.co_names:
        return True
    holders = [value for value in caller.f_locals.values() if hasattr(value, "__dict__")]
    for holder in list(holders):
        holders += [value for value in vars(holder).values() if hasattr(value, "__dict__")]
    return any(callable(vars(holder).get(name)) and not isinstance(vars(holder)[name], type) for holder in holders)


# --- a worker ----------------------------------------------------------------------------------------------------------


def worker(task: dict[str, Any]) -> None:
    """Take part as told; results go to stdout as JSON, one a line."""
    import torch

    from ftlib import FTLib

    torch.set_num_threads(1)
    index, size = task["index"], task["size"]
    ft = FTLib.init(
        introducers=[task["introducer"]],
        bind=task["introducer"] if not index else "127.0.0.1:0",
        initial_size=size,
        job=task["job"],
        config={},
    )
    model = torch.nn.Linear(1000, 1000, bias=False)
    ft.register_state(model=model)
    small = torch.nn.Parameter(torch.zeros(1024))
    for parameter in (*model.parameters(), small):
        parameter.grad = torch.ones_like(parameter)
    ft.on_view_change(lambda _view: None)
    if task["what"] == "time":
        _take_time(ft, small, index)
    else:
        _walk(ft, model, index, task)
    if task["what"] != "killed":
        ft.close()
    sys.stdout.flush()
    os._exit(0)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def _walk(ft: Any, model: Any, index: int, task: dict[str, Any]) -> None:
    for _ in range(WARM_UP):
        assert ft.allreduce_average(model)
    trace = Trace(Path(task["root"]))
    if task["what"] == "healthy":
        found = []
        for _ in range(TRACED):
            time.sleep(0.05)
            if index:
                assert ft.allreduce_average(model)
            else:
                found.append(trace.run(lambda: ft.allreduce_average(model)))
        if not index:
            _say(**sorted(found, key=lambda each: each["functions"])[len(found) // 2])
        return
    if index == task["size"] - 1:
        time.sleep(VICTIM_WAITS)
        os.kill(os.getpid(), signal.SIGKILL)
    if index:
        assert ft.allreduce_average(model)
    else:
        walked = trace.run(lambda: ft.allreduce_average(model))
        assert ft.size == task["size"] - 1, "it went on without the victim"
        _say(**walked)
    time.sleep(1.0)  # nobody's end shall be part of it


def _take_time(ft: Any, small: Any, index: int) -> None:
    """CPU microseconds a call of the training thread, ours and the bare group's, in turns."""
    import torch

    gloo = ft._session.group  # noqa: SLF001 - as the next
    backend = gloo.backend if hasattr(gloo, "backend") else gloo._backend  # noqa: SLF001 - in older checkouts
    options = gloo._reductions["SUM"]  # noqa: SLF001 - the group itself, with nothing of ours
    bare = torch.ones(1024 + 100)
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}

    def ours() -> None:
        ft.allreduce_average(small)

    def group() -> None:
        backend.allreduce([bare], options).wait()

    for _ in range(WARM_UP):
        ours()
        group()
    for _ in range(BLOCKS):
        for name, task in (("ours", ours), ("bare", group)):
            began = time.thread_time()
            for _ in range(BLOCK):
                task()
            seconds[name].append((time.thread_time() - began) / BLOCK)
    ft.barrier()
    if not index:
        # The least disturbed stretch: other processes make a call dearer, and none makes it cheaper.
        _say(**{name: min(found) * 1e6 for name, found in seconds.items()})


# --- the benchmark -----------------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def measure(root: Path, what: str, size: int) -> dict[str, Any]:
    """One job of workers that import ``root``; what its first worker found."""
    introducer, job = f"127.0.0.1:{_free_port()}", f"walk-{os.getpid()}-{time.time_ns()}"
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    workers = []
    for index in range(size):
        task = {"index": index, "size": size, "introducer": introducer, "job": job, "what": what, "root": str(root)}
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(task)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        workers.append(subprocess.Popen(command, cwd=root, env=environment, **pipes))
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    lines = [line for line in outputs[0].splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{root}: the first worker of {what!r} found nothing")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def main() -> None:
    """Print a table, and the functions with ``--names``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout to measure in the same run")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--names", action="store_true", help="list the functions, with how often each was entered")
    parser.add_argument("--only", choices=["healthy", "killed", "time"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(json.loads(options.worker))
        return
    roots = [ROOT] if options.beside is None else [options.beside.resolve(), ROOT]
    for what in [options.only] if options.only else ["healthy", "killed", "time"]:
        for root in roots:
            found = measure(root, what, options.workers)
            if what == "time":
                beyond = found["ours"] - found["bare"]
                print(f"{what:8} {root}: {found['ours']:.0f} us a call, the group {found['bare']:.0f}, beyond it {beyond:.0f}")
                continue
            counts = ", ".join(f"{found[name]} {name}" for name in COUNTS)
            print(f"{what:8} {root}: {counts}")
            if options.names:
                for name, count in found["names"].items():
                    print(f"    {count:4} {name}")
                for name, count in found["called_back"].items():
                    print(f"    callback {count} {name}")


if __name__ == "__main__":
    main()
