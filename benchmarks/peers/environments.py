"""Environments of the peers: made by the comparison itself, with pinned requirements, in ``out/peers/env-NAME``.

torch, numpy and whatever else the environment here has are taken from it, so that all systems run on the same torch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

REQUIREMENTS = {
    "torchft": ("torchft-nightly==2026.10.26",),
    "hivemind": ("hivemind==1.1.12", "grpcio==1.85.3", "grpcio-tools==1.85.1", "py-cid==0.5.0", "uvloop==0.23.0"),
}
"""By the package that a program imports. torchft needs numpy beside it, which it does not say."""
LIMIT = 300.0
"""Seconds that installing may take."""


class MissingError(Exception):
    """It cannot be installed here: the last line of the error."""


def interpreter(package: str, folder: Path) -> str:
    """The Python that has this package: this one, or that of an environment, which is made unless it is there. MissingError."""
    requirements = REQUIREMENTS.get(package)
    if requirements is None:
        return sys.executable
    where = folder.absolute() / f"env-{package}"
    python, made = where / "bin" / "python", where / "made.json"
    wanted = json.dumps([requirements, sys.version, sysconfig.get_paths()["purelib"]])
    if made.exists() and made.read_text() == wanted:
        return str(python)
    shutil.rmtree(where, ignore_errors=True)
    try:
        venv.create(where, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:  # Debian has no ensurepip without python3-venv
        raise MissingError(f"no environment could be made ({error}): is python3-venv installed?") from None
    [packages] = where.glob("lib/*/site-packages")
    (packages / "parent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    _run([str(python), "-c", f"import torch, numpy, {package}"])
    made.write_text(wanted)
    return str(python)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise MissingError(f"not installed within {LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise MissingError(([line for line in done.stderr.splitlines() if line.strip()] or ["no reason was given"])[-1].strip())
