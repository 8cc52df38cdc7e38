"""Variables that say which worker of which launch a process is. Whoever inherits them would take itself for that worker."""

from __future__ import annotations

OURS = (
    "FTLIB_SOCKET_FDS", "FTLIB_ADVERTISE", "FTLIB_BIND", "FTLIB_INTRODUCERS", "FTLIB_SUPERVISOR", "FTLIB_GPU", "FTLIB_NAME",
    "FTLIB_WORKER_INDEX", "FTLIB_INITIAL_SIZE", "FTLIB_REPLICA", "FTLIB_SHARD", "FTLIB_SHARDS",
    "FTLIB_SECRET", "FTLIB_SECRET_FILE",
)  # fmt: skip
"""Set by launchers of ftlib's."""
OTHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Set by torchrun and its like."""
