"""Makes forked children release the agent's sockets.

A child of ``fork`` (a DataLoader worker, say) inherits every descriptor. It would keep a dead parent's listener answering and
its liveness connections open, and so hide the parent's death while the child lives. The descriptors are replaced by /dev/null
rather than closed: the child's copies of the socket objects may close "their" numbers later, which must not belong to other
files by then.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable

_owners: weakref.WeakKeyDictionary[object, Callable[[], Iterable[int]]] = weakref.WeakKeyDictionary()
_registered = False


def release_in_children(owner: object, descriptors: Callable[[], Iterable[int]]) -> None:
    """In every later forked child, as long as ``owner`` lives here: replace what ``descriptors()`` then returns.

    ``descriptors`` runs in the child and must take no lock. It must not hold ``owner`` strongly.
    """
    global _registered  # noqa: PLW0603 - the interpreter offers no way to unregister, so once for the process
    if not _registered:
        os.register_at_fork(after_in_child=_release)
        _registered = True
    _owners[owner] = descriptors


def _release() -> None:
    fds = {fd for descriptors in list(_owners.values()) for fd in descriptors() if fd >= 0}
    _owners.clear()
    if not fds:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        with contextlib.suppress(OSError):
            os.dup2(null, fd, inheritable=False)
    if null not in fds:
        os.close(null)
