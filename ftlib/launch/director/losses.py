"""What the words of a command mean that led to no agent: how its host was lost, and what the user can do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..stream.messages import release
from .decisions.hosts import Loss

_AWAY = re.compile(
    "timed out|no route|unreachable|connection (refused|reset|closed)|temporary failure|nothing came",
    re.IGNORECASE,
)
"""In the words of ssh and of ``Link``: nobody answered, or nobody who had the time to say no."""
_ENDED = re.compile("slurm job \\S+ has expired|invalid job id|job/step already complet", re.IGNORECASE)
"""In the words of srun: the allocation is no more."""
_REMEDIES = {
    "identification has changed|host key for .* has changed": "if the new key is right: ssh-keygen -R {host}",
    "host key verification failed": "log in once by hand, ssh {host}, and accept its key if it is the right one",
    "permission denied|too many authentication": "make ssh -o BatchMode=yes {host} true work: ssh-copy-id gives it your key",
    "could not resolve|not known": "name it as ssh knows it, or by its address",
    "no module named '?\"?ftlib": "install ftlib {release} there, or name the interpreter that has it (python=, --python)",
    "exit code 12[67]|cannot be run|no such file": "name what is there (python=, --python), or load it first (setup=, --setup)",
    _AWAY.pattern: "see that it is up, and that ssh {host} true works",
    "exit code [0-9]+$": "run by hand what comes before the agent there: the login, and setup (setup=, --setup)",
}
_LATER = {
    "^nothing came for": "it or the network to it is gone, or it stood still: see that ssh {host} true works "
    "(agent_timeout= says how long is borne)",
    "^the stream (ended|broke: [^:]*)(: (exit code|signal|killed)[^:]*)?$": "its agent was killed, or the login ended: see the "
    "host's own log, as dmesg for want of memory",
}
"""The same for an agent that has spoken, and was lost then without a word."""


def loss_of(why: str) -> Loss:
    """How a host was lost at which no agent of ours has spoken."""
    return Loss.OVER if _ENDED.search(why) else Loss.AWAY if _AWAY.search(why) else Loss.REFUSED


def with_remedy(host: str, why: str) -> str:
    """The same reason with what can be done about it, where that is known."""
    return _told(host, why, _REMEDIES)


def with_later_remedy(host: str, why: str) -> str:
    """The same for an agent that has spoken before it was lost."""
    return _told(host, why, _LATER)


def _told(host: str, why: str, remedies: Mapping[str, str]) -> str:
    for pattern, remedy in remedies.items():
        if re.search(pattern, why, re.IGNORECASE):
            return f"{why.rstrip('.')}: {remedy.format(host=host, release=release())}"
    return why
