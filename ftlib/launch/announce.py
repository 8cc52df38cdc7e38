"""What a worker tells its launcher about itself. Standard library only; called by ``FTLib``, not by users.

The launcher knows where its first workers listen; a restarted one binds its own port and must say which. It must also
know who holds a view, because only such a member can introduce others.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable

__all__ = ["announce"]


def announce(
    supervisor: str,
    vouch: Callable[..., str] | None = None,
    *,
    job: str,
    member: str,
    address: str,
    epoch: int,
    timeout: float = 5.0,
) -> bool:
    """Tell the launcher at ``supervisor`` (``FTLIB_SUPERVISOR``) this process's member id, control address and view.

    Call it whenever a view was activated (``epoch``: its number), off the training thread. Blocks at most about
    ``timeout`` seconds; whether the launcher took note. ``vouch``: ``Key.vouch`` of the job's key.
    """
    facts = {"job": job, "pid": os.getpid(), "member": member, "address": address, "epoch": epoch}
    body = json.dumps(facts if vouch is None else {**facts, "mac": vouch("announce", *facts.values())})
    connection = http.client.HTTPConnection(supervisor, timeout=timeout)
    try:
        connection.request("POST", "/announce", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
