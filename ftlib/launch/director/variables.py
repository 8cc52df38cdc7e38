"""The variables of one worker's start: the last word, after the host's own, the copied, the file's and the extra ones."""

from __future__ import annotations

from ..processes.sockets import address_of
from .decisions.actions import StartWorker
from .decisions.launch_state import LaunchState
from .plan import Plan


def worker_variables(
    plan: Plan,
    ledger: LaunchState,
    action: StartWorker,
    address: str,
    supervisor: str,
    master_address: str,
    master_port: int,
    gpus: int,
) -> dict[str, str]:
    """``address``: where the workers of its host listen. ``supervisor``: its agent's fence endpoint."""
    place = ledger.places[action.index]
    slots = ledger.hosts[place.host].slots
    found = {
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(slots),
        "FTLIB_JOB": plan.job,
        "FTLIB_INTRODUCERS": ",".join(action.introducers),
        "FTLIB_INITIAL_SIZE": str(min(action.initial_size, plan.max_workers or action.initial_size)),  # the others are spares
        "FTLIB_BIND": action.address or address_of(address, 0),
        "FTLIB_SUPERVISOR": supervisor,
        "FTLIB_NAME": f"{place.host}/{place.local_rank}",
        "FTLIB_WORKER_INDEX": str(action.index),
    }
    if "OMP_NUM_THREADS" not in plan.variables and slots > 1:
        found["OMP_NUM_THREADS"] = "1"
    if not plan.rules.elastic:
        names = list(dict.fromkeys(each.host for each in ledger.places))
        found |= {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(ledger.size),
            "GROUP_RANK": str(names.index(place.host)),
            "GROUP_WORLD_SIZE": str(len(names)),
            "MASTER_ADDR": master_address,
            "MASTER_PORT": str(master_port),
        }
    if plan.rules.elastic and plan.rules.min_workers > 1:
        found["FTLIB_MIN_SIZE"] = str(plan.rules.min_workers)
    if gpus:
        found["FTLIB_GPU"] = str(place.local_rank % gpus)
    if plan.max_workers is not None:
        found["FTLIB_MAX_SIZE"] = str(plan.max_workers)
    if plan.resume:
        found["FTLIB_RESUME"] = plan.resume
    return found
