"""The process that has torch loaded and does nothing but fork: from it come the children that can be killed.

Single-threaded, so that a fork of it is whole. It ends with the training process, and the children end with it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import signal
import socket
import time
from pkgutil import resolve_name

from ftlib.common.processes import call_process, die_with_parent

from .child import REST, Kind, serve

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What a terminal or a launcher sends to a whole group of processes is meant for the training process."""


def main(fd: int, parent: int, role: str, *arguments: str) -> None:
    """Serve at socket ``fd`` until process ``parent`` ends.

    ``role``: ``module:function``, which loads what children need, and returns what they are. It must start no thread.
    """
    import torch  # noqa: PLC0415 - what this process is for

    call_process("ftlib-nursery")
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    if os.getppid() != parent:  # it had ended, and the number may be another's by now
        return
    kind = resolve_name(role)(*arguments)
    gc.collect()
    gc.freeze()  # what is here stays: looking through it for garbage would copy its pages in each child
    try:
        _serve(socket.socket(fileno=fd), watched, kind)
    finally:
        os._exit(0)  # not through the interpreter's end, which takes a processor for long, perhaps just when others recover


def _serve(sock: socket.socket, parent: int, kind: Kind) -> None:
    """``parent``: readable once it has ended."""
    children: dict[int, int] = {}
    poll = select.poll()
    for each in (sock.fileno(), parent):
        poll.register(each, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == parent:
                time.sleep(REST)
                return  # and the children with this process
            if fd == sock.fileno():
                data, fds, _, _ = socket.recv_fds(sock, 16, 1, socket.MSG_CMSG_CLOEXEC)
                if not data:  # the parent is ending: the kernel closes its sockets first
                    time.sleep(REST)
                    return
                pid, pidfd = _fork(kind, fds[0], (sock.fileno(), parent, *children))
                children[pidfd] = pid
                poll.register(pidfd, select.POLLIN)
                with contextlib.suppress(OSError):
                    socket.send_fds(sock, [str(pid).encode()], [pidfd])
            elif fd in children:
                poll.unregister(fd)
                os.waitpid(children.pop(fd), 0)
                os.close(fd)


def _fork(kind: Kind, fd: int, others: tuple[int, ...]) -> tuple[int, int]:
    """A child that serves at socket ``fd``, which is closed here; its number, and a descriptor that tells of its end.

    ``others``: descriptors that are no business of the child.
    """
    own = os.getpid()
    pid = os.fork()
    if not pid:
        serve(kind, socket.socket(fileno=fd), functools.partial(_settle, own, others))
    os.close(fd)
    return pid, os.pidfd_open(pid)


def _settle(parent: int, others: tuple[int, ...]) -> None:
    die_with_parent(parent)
    for fd in others:
        os.close(fd)
