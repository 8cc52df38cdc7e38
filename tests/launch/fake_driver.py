"""What NVIDIA's driver shows of itself, made up: the program ``nvidia-smi``, and files as under ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

MODEL = "NVIDIA H200"


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def listed(count: int, *, split: Sequence[int] = ()) -> str:
    """The output of ``nvidia-smi -L``; ``split``: those that are divided into two instances."""
    lines = []
    for number in range(count):
        lines.append(f"GPU {number}: {MODEL} (UUID: {uuid(number)})")
        if number in split:
            lines += [f"  MIG 3g.71gb     Device  {each}: (UUID: MIG-{number}{each}-aa)" for each in range(2)]
    return "".join(line + "\n" for line in lines)


def fake_smi(directory: Path, output: str = "", *, code: int = 0, apps: str = "") -> str:
    """A program of that name in ``directory``; returns a PATH on which it comes first. ``apps``: said of running processes."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "said").write_text(output)
    (directory / "apps").write_text(apps)
    program = directory / "nvidia-smi"
    body = f'case "$1" in -L) cat {directory}/said;; *) cat {directory}/apps;; esac\nexit {code}\n'
    program.write_text(f"#!/bin/sh\n{body}")
    program.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def fake_proc(directory: Path, count: int, version: str = "") -> Path:
    """Files as under ``/proc/driver/nvidia``."""
    for number in range(count):
        place = directory / "gpus" / f"0000:{number:02x}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(
            f"Model: \t\t {MODEL}\nIRQ:   \t\t 17\nGPU UUID: \t {uuid(number)}\nDevice Minor: \t {number}\n"
        )
    directory.mkdir(parents=True, exist_ok=True)
    if version:
        (directory / "version").write_text(version)
    return directory
