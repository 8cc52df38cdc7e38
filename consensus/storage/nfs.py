"""What an NFS client's caches do to a store. Nothing that is unsafe: see ``floors``. But news may be seen late."""

from __future__ import annotations

import os

__all__ = ["advice"]


def advice(device: int, mounts: str) -> str | None:
    """What to say about the mount options of ``device`` (``st_dev``); None where there is nothing to be said.

    ``mounts``: the text of ``/proc/self/mountinfo``; see nfs(5) for the options.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, system = line.partition(" - ")
        fields, kind = mount.split(), system.split()
        if len(fields) < 6 or fields[2] != number or len(kind) < 3 or not kind[0].startswith("nfs"):
            continue
        options = {*fields[5].split(","), *kind[2].split(",")}
        if "nocto" in options:
            return "it is mounted with nocto, so that members may seem dead: mount it without"
        if options.isdisjoint({"noac", "lookupcache=pos", "lookupcache=none"}):
            return "its NFS client may overlook a new view for a minute: mount it with lookupcache=positive,actimeo=1"
    return None
