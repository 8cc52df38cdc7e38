"""Python in the pages compiles and imports what exists. What a newcomer copies runs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from pathlib import Path

import pytest

from tests.harness.nursery import Nursery
from tests.harness.program import Program

from .pages import PAGES, ROOT, fences, name, section

SNIPPETS = [pytest.param(code, id=f"{name(page)}:{line}") for page in PAGES for line, code in fences(page, "python")]
COPIED = [
    ("tutorial.md", None),
    ("state.md", "What is registered"),
    ("calls.md", "Weights"),
    ("calls.md", "What a call returns"),
    ("elasticity.md", "Joining again in the same process"),
    ("migrating.md", None),
    ("data_parallel.md", None),
    ("local_sgd.md", None),
    ("integrations.md", "A schedule in the loop: nanoGPT"),
]
"""Pages, and the section of each (None: all of it), whose snippets run one after the other."""

OPTIONAL = ("mlflow", "wandb")
"""Modules that recipes use, and that need not be installed."""

SURROUNDINGS = """
import logging
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss

from ftlib import FTLib, Status

torch.manual_seed(0)
model, loss_fn, best = nn.Linear(32, 1), mse_loss, {}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
iteration, get_lr = 0, lambda done: 0.01 / (1 + done)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
scaler = torch.amp.GradScaler("cpu")
inputs, targets = torch.randn(8, 32), torch.randn(8, 1)
loader = [(inputs, targets)] * 2
"""
"""What those snippets take for granted."""

RUNNER = """
import json, os, sys

surroundings, snippets = json.loads(sys.argv[1])
exec(surroundings)
ft = None
for place, code in snippets:
    if ft is None and "FTLib.init()" not in code:
        ft = FTLib.init()
    elif ft is not None and "FTLib.init()" in code:
        ft = ft.close()
    scope = dict(globals())
    try:
        exec(compile(code, place, "exec"), scope)
    except BaseException as error:
        sys.exit(f"{place}: {type(error).__name__}: {error}")
    print("ran", place)
"""


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_compile_and_import_what_exists(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name in OPTIONAL or importlib.util.find_spec(alias.name), f"no module {alias.name}"
        elif isinstance(node, ast.ImportFrom):
            assert node.module and importlib.util.find_spec(node.module), f"no module {node.module}"
            if node.module.split(".")[0] in ("ftlib", "consensus"):
                module = importlib.import_module(node.module)
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{node.module} has no {', '.join(missing)}"


@pytest.mark.process
def test_snippets_that_newcomers_copy_run(nursery: Nursery, tmp_path: Path) -> None:
    blocks = []
    for page, heading in COPIED:
        found = fences(ROOT / "docs" / page, "python")
        part = [(page, *block) for block in found if heading is None or block[1] in section(ROOT / "docs" / page, heading)]
        assert part, f"no Python in {page}, {heading}"
        blocks += part
    # The script trains for a minute; three steps show as much.
    snippets = [
        (
            f"{page}:{line}",
            code.replace("ft.step < 3000", "ft.step < 3").replace("sleep(0.02)", "sleep(0)").replace("% 100", "% 2"),
        )
        for page, line, code in blocks
    ]
    with Program(nursery, tmp_path, "-c", RUNNER, json.dumps([SURROUNDINGS, snippets])) as done:
        assert done.wait(250) == 0, done.stdout + done.stderr
    assert [path.name[:18] for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000000002-"]
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert len(ran) == len(blocks) >= 8


def test_as_many_lines_of_nanogpt_change_as_the_page_says() -> None:
    """Beyond what was there for DDP. ``python -m benchmarks nanogpt PATH`` counts and trains nanoGPT's own file."""
    page = (ROOT / "docs/integrations.md").read_text()
    [diff] = [code for _, code in fences(ROOT / "docs/integrations.md", "diff")]
    lines = diff.splitlines()
    added, removed = ([line for line in lines if line.startswith(sign)] for sign in "+-")
    own = [line for line in removed if any(word in line for word in ("grad_clip", "scaler", "iter_num"))]
    assert f"{len(added) + len(own)} lines beyond what DDP needed: {len(own)} go, {len(added)} come" in page
    assert len(added) + len(own) <= 20
