"""What workers of ``test_gpus`` do."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from .workers import Here

LIMIT = 60.0


def use(here: Here, device: int) -> bool:
    """Make it the current one of every thread that comes; whether there is such a one."""
    if device >= torch.cuda.device_count():
        return False
    here.kept["device"] = device
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    return True


def exchange(here: Here, names: list[str], first: bool, rounds: int) -> str:
    """Tensors to and fro, each sent while the kernel that fills it still runs; the way that they took in the end."""
    group = here.collective.create_collective_group(names)
    device = "cpu"
    if "device" in here.kept:
        torch.cuda.set_device(here.kept["device"])
        device = "cuda"
    for number in range(rounds):
        tensor, into = torch.zeros(1 << 16, device=device), torch.zeros(1 << 16, device=device)
        if device == "cuda":
            torch.cuda._sleep(1_000_000)
        tensor.fill_(number)
        sent = group.send_tensor(tensor, async_op=True)
        group.recv_tensor(into, timeout=LIMIT)
        sent.wait(LIMIT)
        tensor.fill_(-1)  # it is ours again
        if device == "cuda":
            with torch.cuda.stream(torch.cuda.Stream()):
                total = float((into * 1).sum())
        else:
            total = float(into.sum())
        assert total == float(number << 16), (number, total)
    (facts,) = group.describe()["peers"].values()
    return str(facts["gpu"]).partition(":")[0]


def footprint(here: Here) -> dict[str, int]:
    del here
    return {
        "threads": threading.active_count(),
        "fds": len(list(Path("/proc/self/fd").iterdir())),
        "gpu": torch.cuda.memory_allocated(),
    }
