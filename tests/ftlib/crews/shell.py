"""What a user's script does: ``FTLib.init()`` without arguments, 20 steps, and a line that says what came of it.

python -m tests.ftlib.crews.shell                   one worker
python -m tests.ftlib.crews.shell '[{...}, ...]'    one for each of these environments, forked: torch is imported once
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback


def work() -> None:
    import torch

    from ftlib import FTLib

    torch.set_num_threads(1)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ftlib").addHandler(handler)
    logging.getLogger("ftlib").setLevel("INFO")
    weight = torch.nn.Parameter(torch.zeros(4))
    with FTLib.init() as ft:
        while ft.step < 20:
            weight.grad = torch.full((4,), float(ft.rank + 1))
            ft.allreduce_average(weight)
        facts = {
            "size": ft.size,
            "grad": weight.grad[0].item() if weight.grad is not None else None,
            "job": ft.settings.consensus.job,
            "addresses": [member.address for member in ft.member_list],
            "stores": [member.fact("store") for member in ft.member_list],
            "said": said[0],
        }
        ft.barrier()
    os.write(1, (json.dumps(facts) + "\n").encode())  # whole, though several share the pipe


def main() -> int:
    if len(sys.argv) < 2:
        work()
        return 0
    import ftlib
    import ftlib.frameworks.gloo
    import ftlib.ftlib  # noqa: F401 - everything that workers need

    children = []
    for variables in json.loads(sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.environ.update(variables)
                work()
                code = 0
            except BaseException:  # noqa: BLE001 - the parent's test shall see it
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    sys.exit(main())
