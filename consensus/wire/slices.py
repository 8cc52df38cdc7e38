"""Short time slices for threads that others wait for and that compute little: agents, and whoever passes on what they say.

Where more threads want to run than there are processors, a thread that wakes waits until the slice of another is over, a few
milliseconds, at every hop of a view change. Since Linux 6.12 a thread may ask for slices of its own length: it gets no more
of a processor, but gets it sooner, by preempting threads with longer ones (sched_setattr(2), ``sched_runtime`` of
SCHED_OTHER; EEVDF, Stoica and Abdel-Wahab 1995). That takes no privilege. Elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE = 200_000
"""Nanoseconds; the kernel's own are 0.7 to 3 ms, the more processors the longer."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which older C libraries have no function for."""
_KEEP_POLICY = 0x08
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr`` in its first version: size, policy, flags, nice, priority, runtime, deadline, period."""


def short_slices() -> bool:
    """From now on this thread, and those that it starts, get the processor sooner, and for a shorter time.

    Whether the system has agreed; where it has not, nothing has changed. Policy and niceness stay as they are.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread: it is set along with the slice
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, niceness, 0, SLICE, 0, 0)
    return bool(ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, attributes, 0) == 0)
