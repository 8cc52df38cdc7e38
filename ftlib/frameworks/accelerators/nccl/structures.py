"""NCCL's structures and numbers, as far as they are used: those of nccl.h in NCCL 2.28 to 2.30."""

from __future__ import annotations

import ctypes

import torch

ID_BYTES = 128
"""NCCL_UNIQUE_ID_BYTES."""


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``: where the ranks of a communicator meet."""

    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


class Config(ctypes.Structure):
    """``ncclConfig_t`` as NCCL 2.18 has it.

    Later ones are longer. NCCL copies as many bytes as ``size`` says, and takes its defaults for what the structure of
    ``version`` did not have (``parseCommConfig`` in its init.cc); so this one fits all later versions.
    """

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
    ]


_MAGIC = 0xCAFEBEEF
_VERSION = 21800
_UNDEFINED = -(1 << 31)
"""NCCL_CONFIG_UNDEF_INT, which is INT_MIN: NCCL's own default."""


def config() -> Config:
    """Of a non-blocking communicator; all else as NCCL has it by default."""
    rest = (_UNDEFINED, _UNDEFINED, _UNDEFINED, None, _UNDEFINED)
    return Config(ctypes.sizeof(Config), _MAGIC, _VERSION, 0, *rest)


TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
"""``ncclDataType_t`` by torch's dtype."""
REDUCTIONS = {"SUM": 0, "PRODUCT": 1, "MAX": 2, "MIN": 3}
"""``ncclRedOp_t`` by the names of ``Operation.op``."""
