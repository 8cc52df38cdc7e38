"""The house stays as it was built: no circle of imports, few entries in each folder, no module outside of the contracts, no
logger that raises.
"""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from benchmarks import mutants

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("consensus", "ftlib")
MOST = 15
"""Entries of a folder, its ``__init__`` not counted."""
MORE = {"consensus": 19, "ftlib": 24}
"""The top of a package, where its rooms stand beside the values that all of them use; in ftlib the alias of the other, and a
module for each framework that it works with."""
FOLDERS = sorted(str(path.parent.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("__init__.py"))
LOG_SETUP = {
    "consensus/logs.py",  # the careful loggers themselves
    "ftlib/common/logs.py",  # log_format and log_level
    "consensus/runtime/host/child.py",  # a process of its own, which sends its records to the worker's
    "ftlib/launch/agent/child.py",  # a worker of a launcher's, whose records go to the launcher
}
"""Modules that arrange for handlers; no other one uses ``logging``'s own loggers."""
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Tests and benchmarks are counted, as are imports in functions and those for type checking alone."""
    graph = grimp.build_graph(*PACKAGES, "benchmarks", "tests", cache_dir=None)
    assert "benchmarks.report" in graph.modules and "tests.simulation.data_plane.process" in graph.modules
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the modules of a circle


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_few_entries(folder: str) -> None:
    entries = {path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert len(entries - {"__init__"}) <= MORE.get(folder, MOST), sorted(entries)


def test_contracts_count_every_import_and_every_module() -> None:
    assert CONTRACTS["exclude_type_checking_imports"] is False
    layers = [contract for contract in CONTRACTS["contracts"] if contract["type"] == "layers"]
    assert {"ftlib", "ftlib.core", "consensus", "consensus.protocol"} <= {
        name for each in layers for name in each["containers"]
    }
    assert all(contract["exhaustive"] for contract in layers), "a module that no layer names would be under no contract"
    assert not any("ignore_imports" in contract for contract in layers)


def test_all_records_go_through_careful_loggers() -> None:
    """A handler of the program's that raises would end a thread that others wait for."""
    plain = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for name in PACKAGES
        for path in sorted((ROOT / name).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in LOG_SETUP
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _logs_plainly(node)
    ]
    assert not plain, f"use consensus.CarefulLogger: {plain}"


def _logs_plainly(node: ast.AST) -> bool:
    """Whether it is ``logging.getLogger``, ``logging.warning`` or another such, or an import of one of them."""
    makers = {"getLogger", "Logger", "root", "log", "debug", "info", "warning", "error", "exception", "critical"}
    match node:
        case ast.Attribute(value=ast.Name(id="logging"), attr=name):
            return name in makers
        case ast.ImportFrom(module="logging", names=names):
            return any(alias.name in makers for alias in names)
    return False


def test_what_the_mutants_are_made_of_and_tried_by_exists() -> None:
    """``benchmarks/mutants.py`` names files that may have moved."""
    named = sum((*mutants.CODE.values(), *mutants.TESTS.values(), *mutants.DEEP.values()), ())
    assert not [path for path in named if not (ROOT / path).exists()]


def test_only_packages_list_their_names() -> None:
    """``__all__`` says what a package shows. In other files the underscore says it. ftlib/torchft has torchft's names."""
    lists = [
        str(path.relative_to(ROOT))
        for place in (*PACKAGES, "tests", "benchmarks", "imgs")
        for path in sorted((ROOT / place).rglob("*.py"))
        if path.name != "__init__.py" and re.search(r"^__all__\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    allowed = [path for path in lists if path.startswith("ftlib/torchft/") or path == "consensus/tools/metrics.py"]
    assert lists == allowed
