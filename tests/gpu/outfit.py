"""A Python for a bare machine: the one that is there, with its own torch, wheels that were carried along, and this project.

Nothing of the machine's own is changed: a virtual environment leads to all its packages, to those of the wheels, and to
``ftlib`` as it stands here.
"""

from __future__ import annotations

import importlib.util
import shutil
import site
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

CARRIED = {
    "cffi": "cffi",
    "cryptography": "cryptography",
    "greenlet": "greenlet",
    "pycparser": "pycparser",
    "pythonjsonlogger": "python-json-logger",
}
"""Modules that machines with a GPU often lack, and what they are called as packages: ``make gpu-wheels`` gets them."""
OTHERS = {
    "aiohttp": "aiohttp",
    "click": "click",
    "hypothesis": "hypothesis",
    "msgpack": "msgpack",
    "numpy": "numpy",
    "prometheus_client": "prometheus-client",
    "psutil": "psutil",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "xxhash": "xxhash",
}
"""The others that ftlib and its tests need. Wheels of these are used as well."""
ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "GPU_WHEELS"
"""The environment variable that names the folder of wheels."""


def absent(wheels: Sequence[Path] = ()) -> list[str]:
    """Packages that neither this Python nor any of the wheels has."""
    carried = {wheel.name.partition("-")[0].lower().replace("_", "-") for wheel in wheels}
    needed = CARRIED | OTHERS
    return sorted(name for module, name in needed.items() if importlib.util.find_spec(module) is None and name not in carried)


def outfitted(directory: Path, wheels: Sequence[Path]) -> Path:
    """Make, in ``directory``, a Python that has this one's packages and those of the wheels; its path."""
    shutil.rmtree(directory, ignore_errors=True)
    packages, home = directory / "packages", directory / "python"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    venv.EnvBuilder(symlinks=True).create(home)
    inside = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(home), "platbase": str(home)}))
    own = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    # Python reads such a file as it starts. A line that imports is carried out, so that the ``.pth`` files there count as well.
    there = [f"import site; site.addsitedir({path!r})" for path in own if Path(path).is_dir()]
    lines = [str(packages.resolve()), str(ROOT), *there]
    (inside / "carried.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return home / "bin" / Path(sys.executable).name
