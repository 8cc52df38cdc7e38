"""What workers do in the benchmarks of launching. Imports little: some of it is to be fast."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

LINES = 2_500


def rank() -> int:
    return int(os.environ.get("RANK") or os.environ.get("FTLIB_WORKER_INDEX") or 0)


def say(path: str, name: str, text: object) -> None:
    """Write a file at once."""
    part = Path(path) / f".{name}.{os.getpid()}"
    part.write_text(str(text))
    part.rename(Path(path) / name)


def start(path: str) -> None:
    import torch

    del torch
    print("ready", rank(), flush=True)
    say(path, f"ready-{rank()}", time.monotonic())


def trivial(_path: str) -> int:
    return rank()


def fail(path: str, how: str) -> None:
    for number in range(LINES):
        print(f"LINE {rank()} {number} END")
    sys.stdout.flush()
    say(path, f"printed-{rank()}", "")
    if rank() == 1:
        while len(list(Path(path).glob("printed-*"))) < 4:
            time.sleep(0.005)
        time.sleep(0.2)
        say(path, "failed", time.monotonic())
        if how == "kill":
            os.kill(os.getpid(), 9)
        raise RuntimeError("this worker fails")
    while True:
        time.sleep(0.001)


def family(path: str) -> None:
    """A loader, and a daemon in a session of its own."""
    loader = subprocess.Popen(["sleep", "1000"])
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    say(path, f"pids-{rank()}-{os.uname().nodename}", f"{os.getpid()} {loader.pid} {daemon.pid}")
    while True:
        time.sleep(1.0)


def gigabyte(_path: str) -> bytes:
    for number in range(20_000):
        print(f"LINE {rank()} {number} END")
    return bytes(1 << 30) if rank() == 0 else b""


def train(path: str) -> None:
    """Averages of a million parameters for ever; each is a line."""
    import torch

    from ftlib import FTLib

    ft = FTLib.init(framework="gloo")
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    ft.register_state(model=model, optimizer=optimizer)
    name = f"{os.uname().nodename}-{os.getpid()}"
    with (Path(path) / f"train-{name}").open("a", buffering=1) as log:
        while not ft.should_leave:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            if ft.allreduce_average(model):
                optimizer.step()
                print(time.monotonic(), ft.size, file=log)
            optimizer.zero_grad()
            time.sleep(0.02)
    ft.close()


def ddp(path: str) -> None:
    """The same with torch's own group, for torchrun."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gradient = torch.ones(1_000_000)
    with (Path(path) / f"train-{os.uname().nodename}-{os.getpid()}").open("a", buffering=1) as log:
        while True:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
            print(time.monotonic(), dist.get_world_size(), file=log)
            time.sleep(0.02)


if __name__ == "__main__":  # as a script, for launchers of scripts
    {name: function for name, function in globals().items() if callable(function)}[sys.argv[1]](*sys.argv[2:])
