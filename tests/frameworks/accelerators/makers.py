"""Accelerators that fail where the rehearsal's does not: before a communicator is begun. Made in children, by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ftlib.errors import ConfigError
from ftlib.frameworks.accelerators.rehearsal.accelerator import RehearsedAccelerator
from ftlib.frameworks.accelerators.rehearsal.faults import Faults
from ftlib.frameworks.base import GroupSpec


class _Failing(RehearsedAccelerator):
    def __init__(self) -> None:
        super().__init__(Faults())


class StartFails(_Failing):
    def start(self, host: str) -> None:
        raise RuntimeError("libnccl.so.2 is too old")


class Misconfigured(_Failing):
    def start(self, host: str) -> None:
        raise ConfigError("NCCL_COMM_BLOCKING=1 makes NCCL block: unset it")


class StartHangs(_Failing):
    def start(self, host: str) -> None:
        threading.Event().wait()


class FactsFail(_Failing):
    def facts(self, spec: GroupSpec) -> Mapping[str, str]:
        raise RuntimeError("no id could be made")


class FactsHang(_Failing):
    def facts(self, spec: GroupSpec) -> Mapping[str, str]:
        threading.Event().wait()
        return {}
