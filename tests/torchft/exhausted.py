"""A parameter server whose process runs out of descriptors for a while: ``python -m tests.torchft.exhausted``."""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path

from .visitor import Adding, add


def main() -> None:
    with Adding() as server:
        used = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        visitor, held = socket.socket(), []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        visitor.connect(("127.0.0.1", server.port))
        began = time.process_time()
        time.sleep(0.5)
        busy = time.process_time() - began
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        assert busy < 0.2, f"it has looked for visitors for {busy:.2f} s of processor time"
        visitor.close()
        assert add(Adding.new_session(server.address()), 1.0) == 1.0
    print("served", flush=True)


if __name__ == "__main__":
    main()
