"""A program of two workers of ``ftlib run``, and a folder: one is killed, started again, and exits with its sends pending."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from ftlib import Collective, FTLib, PeerLost, Refused

LIMIT = 100.0
COUNT, ELEMENTS = 20, 1 << 18


def main(where: Path) -> None:
    """Be the worker that stays, or the one that is killed, or that one once more."""
    ft = FTLib.init()
    collective = Collective(ft)
    here = str(collective.here.fact("name"))
    again = (where / here).exists()
    until = time.monotonic() + LIMIT
    while not again and len(ft.member_list) < 2:
        if time.monotonic() > until:
            raise TimeoutError(f"only {ft.member_list} after {LIMIT:g} s")
        time.sleep(0.02)  # between two looks
    if not again:
        (where / here).write_text("\n".join(sorted(str(each.fact("name")) for each in ft.member_list)))
    names = (where / here).read_text().splitlines()
    group = collective.create_collective_group(names, "weights")
    if here == names[0]:
        stay(ft, collective, names)
    elif again:
        for number in range(COUNT):
            group.send([number, torch.full((ELEMENTS,), float(number))], async_op=True)
        sys.exit(0)  # nothing is waited for, and nothing is closed
    else:
        group.send("the first life", timeout=LIMIT)
        os.kill(os.getpid(), signal.SIGKILL)


def stay(ft: FTLib, collective: Collective, names: list[str]) -> None:
    """Receive from both lives of the other one."""
    group = collective.create_collective_group(names, "weights")
    assert group.recv(timeout=LIMIT) == "the first life"
    facts = ft.metrics()["collective"]["weights"]
    print("counted:", facts["peers"], facts["received"] >= 1, flush=True)
    try:
        group.recv(timeout=LIMIT)
    except PeerLost as error:
        print("lost:", error.peer is not None and error.peer.fact("name") == names[1], flush=True)
    until = time.monotonic() + LIMIT
    while group.over is not None and time.monotonic() < until:
        try:
            group = collective.create_collective_group(names, "weights")
        except Refused:  # the new process is not admitted yet
            time.sleep(0.05)  # between two looks
    got = [group.recv(timeout=LIMIT) for _ in range(COUNT)]
    whole = [(number, float(tensor.mean())) for number, tensor in got] == [(each, float(each)) for each in range(COUNT)]
    print("whole:", whole, flush=True)
    ft.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
