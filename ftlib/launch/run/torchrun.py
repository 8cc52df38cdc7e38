"""What the options of torchrun (of torch 2.13) become here: told to who gives them to ``ftlib run``, which does not guess."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_WHOLE_LOGS = "workers' lines have a prefix on the terminal; --log-dir writes them to files, too"
_NO_MASTER = "there is no master: with several hosts run the same command on each, with --meet HOST:PORT"

INSTEAD = {
    "--nnodes": "run the same command on each host with --meet HOST:PORT and --size, or once with --hosts",
    "--nproc-per-node": "give -n N, or -n auto, gpu or cpu",
    "--rdzv-backend": f"nothing is needed: {_NO_MASTER}",
    "--rdzv-endpoint": "give --meet HOST:PORT",
    "--rdzv-id": "give --job NAME",
    "--rdzv-conf": "nothing is needed; how long workers wait for each other is the setting FTLIB_JOIN_TIMEOUT",
    "--standalone": "leave it out: without --meet and --hosts all workers are here",
    "--monitor-interval": "leave it out: a worker's death is seen at once",
    "--start-method": "leave it out: each worker is a process of its own",
    "--event-log-handler": "give --events FILE: one JSON line an event",
    "--role": "leave it out: all workers are alike",
    "--module": "give -m",
    "--no-python": "give a Python script, which may start any program",
    "--run-path": "leave it out: SCRIPT is run by the interpreter that runs ftlib",
    "--redirects": f"give --log-dir DIR: {_WHOLE_LOGS}",
    "-r": f"give --log-dir DIR: {_WHOLE_LOGS}",
    "--tee": f"give --log-dir DIR: {_WHOLE_LOGS}",
    "-t": f"give --log-dir DIR: {_WHOLE_LOGS}",
    "--local-ranks-filter": f"leave it out: {_WHOLE_LOGS}",
    "--duplicate-stdout-filters": f"leave it out: {_WHOLE_LOGS}",
    "--duplicate-stderr-filters": f"leave it out: {_WHOLE_LOGS}",
    "--node-rank": f"leave it out, ranks follow from who is there: {_NO_MASTER}",
    "--master-addr": f"give --meet HOST:PORT: {_NO_MASTER}",
    "--master-port": f"give --meet HOST:PORT: {_NO_MASTER}",
    "--local-addr": "leave it out: a launcher listens at that address of --meet which is this host's",
    "--logs-specs": f"give --log-dir DIR: {_WHOLE_LOGS}",
    "--numa-binding": "start ftlib run under numactl",
    "--signals-to-handle": "leave it out: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 drain the workers",
    "--shutdown-timeout": "give --grace SECONDS",
    "--virtual-local-rank": "leave it out: LOCAL_RANK is the slot, and FTLIB_GPU the device of a worker",
}
"""By the name with dashes; torchrun takes underscores, too. What both have (--max-restarts, --log-dir, -m) is not here."""


def refusal(given: str, known: Iterable[str]) -> str:
    """One line for an option that ``ftlib run`` does not have. ``known``: those that it has."""
    name = given.partition("=")[0]
    dashed = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
    known = list(known)
    where = "what is for the script stands after it"
    if dashed in INSTEAD:
        return f"{name} is torchrun's: {INSTEAD[dashed]}."
    if dashed in known:
        return f"no option {name}: give {dashed}."
    near = difflib.get_close_matches(dashed, [each for each in known if each.startswith("--")], 1, 0.7)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"no option {name}; {where}.{meant}"
