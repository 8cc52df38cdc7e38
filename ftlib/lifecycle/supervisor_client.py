"""Announces a worker to its launcher. Called by ``FTLib``, not by users.

The launcher knows where its first workers listen; a restarted worker binds its own port and must announce it. The launcher
must also know which workers hold a view, because only such a member can introduce others.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Mapping

from consensus import CarefulLogger

logger = CarefulLogger("ftlib")

_refused: set[str] = set()
"""Launchers whose refusal was logged, so that it is not logged again at each activated view."""


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
    """Send the launcher at ``supervisor`` (``FTLIB_SUPERVISOR``) this process's member id, control address and view.

    Call it whenever a view was activated (``epoch``: its number), off the training thread. Blocks at most about
    ``timeout`` seconds; returns True if the launcher accepted. ``vouch``: ``Key.vouch`` of the job's key.
    A refusal is logged once.
    """
    facts = {"job": job, "pid": os.getpid(), "member": member, "address": address, "epoch": epoch}
    status, said = _post(supervisor, "announce", vouch, facts, timeout)
    if status == http.client.FORBIDDEN and supervisor not in _refused:
        _refused.add(supervisor)
        logger.warning(
            "the launcher at %s does not believe this worker, and will introduce nobody to it (%s): "
            "give the launcher the job's secret in its environment, FTLIB_SECRET or FTLIB_SECRET_FILE",
            supervisor,
            _reason(said),
            extra={"ftlib_event": "announce_refused", "job": job, "member": member, "epoch": epoch},
        )
    return status == http.client.OK


def ask_again(supervisor: str, vouch: Callable[..., str], *, job: str, member: str, timeout: float = 5.0) -> bool:
    """Ask the launcher at ``supervisor`` to start this process's worker again when it has ended well; True if it will.

    Blocks at most about ``timeout`` seconds.
    """
    facts = {"job": job, "pid": os.getpid(), "member": member}
    return _post(supervisor, "again", vouch, facts, timeout)[0] == http.client.OK


def ask_awaited(supervisor: str, vouch: Callable[..., str], *, job: str, member: str, timeout: float = 5.0) -> bool | None:
    """Ask the launcher at ``supervisor`` whether it starts another worker than this process, or will; None if it does not say.

    Blocks at most about ``timeout`` seconds.
    """
    facts = {"job": job, "pid": os.getpid(), "member": member}
    status, said = _post(supervisor, "awaited", vouch, facts, timeout)
    if status != http.client.OK:
        return None
    try:
        return bool(json.loads(said)["awaited"])
    except (ValueError, TypeError, KeyError):
        return None


def _post(
    supervisor: str, purpose: str, vouch: Callable[..., str] | None, facts: Mapping[str, object], timeout: float
) -> tuple[int, bytes]:
    """Status and body of the answer; 0 if there was none."""
    body = json.dumps(facts if vouch is None else {**facts, "mac": vouch(purpose, *facts.values())})
    connection = http.client.HTTPConnection(supervisor, timeout=timeout)
    try:
        connection.request("POST", f"/{purpose}", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(1000)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, TypeError, KeyError):
        return "403"
