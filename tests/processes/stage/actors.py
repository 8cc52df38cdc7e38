"""Workers that do what they should not, in processes forked from a zygote; what each does is its part (``parts``).

An actor writes JSON lines for ``stage`` to read: ``{"event": "init"}``, one a finished call (``"call"`` and what it gave), and
what its part adds. An exception ends it like any program: its context closes, the traceback is printed, exit code 1; the log
has it as ``{"event": "error", "kind", "text"}``. With ``whole_end`` the interpreter finalizes as it does by itself.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import signal
import traceback
from typing import Any

import torch

from tests.harness import worker
from tests.processes.programs import learner
from tests.processes.stage import leavers as _leavers  # noqa: F401 - its parts
from tests.processes.stage.actor import Actor
from tests.processes.stage.parts import PARTS


def prepare() -> None:
    """Import what every part needs, before any fork."""
    worker.prepare()
    learner.prepare()


def main(task: dict[str, Any]) -> int:
    """Play the part."""
    output = os.open(task["log"] + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=task["given"].get("level", logging.INFO), format="%(threadName)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    actor = Actor(task)
    try:
        PARTS[task["part"]](actor)
    except SystemExit as end:
        actor.write(event="exit", code=end.code)
        raise
    except BaseException as error:  # noqa: BLE001 - the same
        actor.write(event="error", kind=type(error).__name__, text=str(error))
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    actor.write(event="done")
    return 0


def run(task: dict[str, Any]) -> int:
    """Play the part in a process that was forked; returns where the interpreter's whole end is wanted."""
    code = 1
    try:
        code = main(task)
    except SystemExit as end:
        code = int(end.code or 0)
    if task["given"].get("whole_end"):
        return code
    atexit._run_exitfuncs()
    os._exit(code)  # the rest of the interpreter's end visits every object: seconds of copying pages shared with the zygote
