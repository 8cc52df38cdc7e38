"""Several members of NCCL on one GPU: for tests and benchmarks alone.

NCCL refuses a group in which one GPU of one host stands twice. It takes the name of the host from ``NCCL_HOSTID``, and so each
process may pose as a host of its own. Then nothing but sockets is left between them: what makes use of a shared host or of a
fabric is turned off. The ranks' kernels take turns on the GPU, so this is right, and slow.
"""

from __future__ import annotations

import os


def variables(host: str) -> dict[str, str]:
    """The environment of one process; ``host``: what no other process has. To be set before NCCL is first used in it."""
    return {
        "NCCL_HOSTID": host,
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_RAS_ENABLE": "0",
    }


def pose_as_a_host(device: str) -> None:
    """Set them for this process if its tensors are on a GPU: processes of tests have it together with others."""
    if device.startswith("cuda"):
        os.environ.update(variables(f"process-{os.getpid()}"))
