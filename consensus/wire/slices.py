"""Short time slices for threads that compute little and that others wait for: agents, and threads that relay their messages.

If more threads want to run than there are processors, a thread that wakes waits until another thread's slice is over: a few
milliseconds at every hop of a view change. Since Linux 6.12 a thread may choose the length of its slices: it gets no more
processor time, but gets it sooner, by preempting threads with longer slices (sched_setattr(2), ``sched_runtime`` of
SCHED_OTHER; EEVDF, Stoica and Abdel-Wahab 1995). That needs no privilege. On other systems nothing changes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE = 200_000
"""Nanoseconds; the kernel's default is 0.7 to 3 ms, longer with more processors."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which older C libraries have no function for."""
_KEEP_POLICY = 0x08
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr`` in its first version: size, policy, flags, nice, priority, runtime, deadline, period."""


def short_slices() -> bool:
    """From now on this thread, and threads that it starts, get the processor sooner, and for a shorter time.

    Returns whether the system agreed; if not, nothing has changed. Policy and niceness stay as they are.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread; the call below sets it along with the slice
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, niceness, 0, SLICE, 0, 0)
    return bool(ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, attributes, 0) == 0)
