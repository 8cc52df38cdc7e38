"""One caller in a process of its own: ``python -m benchmarks.launching.caller SYSTEM FUNCTION JSON ARGUMENTS...``.

Prints ``AT <CLOCK_MONOTONIC> <what happened>`` once the launch has returned or raised.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from typing import Any

from benchmarks.launching import work


def by_ftlib(function: Any, arguments: list[str], settings: dict[str, Any]) -> None:
    from ftlib import Launcher

    preload = ("torch",) if function in (work.start, work.train) else ()
    Launcher(**{"preload": preload, **settings}).run(function, *arguments)


def by_torchrunx(function: Any, arguments: list[str], settings: dict[str, Any]) -> None:
    import torchrunx

    torchrunx.Launcher(**{"hostnames": ["localhost"], "backend": None, **settings}).run(function, *arguments)


def spawned(index: int, name: str, arguments: list[str]) -> None:
    import os

    os.environ["RANK"] = str(index)
    getattr(work, name)(*arguments)


def by_spawn(function: Any, arguments: list[str], settings: dict[str, Any]) -> None:
    import torch.multiprocessing as mp

    mp.spawn(functools.partial(spawned, name=function.__name__, arguments=arguments), nprocs=settings["workers_per_host"])


if __name__ == "__main__":
    system, name, settings, *arguments = sys.argv[1:]
    run = {"ftlib": by_ftlib, "torchrunx": by_torchrunx, "spawn": by_spawn}[system]
    try:
        run(getattr(work, name), arguments, json.loads(settings))
        end = "returned"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is measured
        end = f"{type(error).__name__} {str(error).splitlines()[:1]}"
    print(f"AT {time.monotonic()} {end}", flush=True)
