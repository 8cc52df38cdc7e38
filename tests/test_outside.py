"""No object has an attribute set from outside: what it needs it is given when it is made, and it changes itself.

Left alone are records (fields of dataclasses that are not frozen, which have one owner each), what a module does to objects of
its own classes, and objects of Python and torch, whose interface is just that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FOREIGN = {
    "grad",  # of a parameter
    "__cause__",
    "__traceback__",
    "propagate",  # of a logger
    "atexit",  # of a finalizer
    "returncode",  # of a process
    *("restype", "argtypes"),  # of a function of C's
    *("reduceOp", "rootRank", "_devices", "_threads", "_timeout"),  # options of a process group of torch
    "__spec__",  # of a module that has a second name
    *("should_stop", "_batches_that_stepped", "processed", "ready", "completed"),  # of a trainer of Lightning, and its progress
    *("is_world_process_zero", "is_local_process_zero", "global_step", "should_training_stop"),  # of a trainer of transformers
}

PACKAGES = ("consensus", "ftlib")


def trees(package: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def records() -> set[str]:
    """Names of fields of dataclasses that are not frozen."""
    found = set()
    for package in PACKAGES:
        for _, tree in trees(package):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and any(_is_record(each) for each in node.decorator_list):
                    found |= {
                        item.target.id
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    }
    return found


def _is_record(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text.startswith("dataclass") and "frozen=True" not in text


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are assigned to, of whatever object."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        for target in targets:
            yield from (
                each for each in ast.walk(target) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            )


def of_itself(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id in ("self", "cls")


def own(tree: ast.Module) -> set[str]:
    """Attributes of the classes of one module."""
    found = {each.attr for each in assigned(tree) if of_itself(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {
                item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_set_from_outside(package: str) -> None:
    fields, found = records(), []
    for path, tree in trees(package):
        known = own(tree) | fields | FOREIGN
        found += [
            f"{path.relative_to(ROOT)}:{each.lineno}: {ast.unparse(each)}"
            for each in assigned(tree)
            if not of_itself(each) and each.attr not in known
        ]
    assert not found, "\n".join(["give it when the object is made, or a method that says what happens:", *found])
