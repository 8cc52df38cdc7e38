"""``make docs``: the pages and the reference become a site, without a warning, that needs nothing from elsewhere."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import ftlib

from .pages import PAGES, ROOT

WITHIN = 600
"""Seconds: it takes about ten of processor time, and there may be little of that."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``make docs`` makes it."""
    made = tmp_path_factory.mktemp("site")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", "-d", str(made / "doctrees")]
    built = subprocess.run(
        [*sphinx, ".", str(made / "html")], cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert built.returncode == 0, built.stderr
    return made / "html"


def test_every_page_is_there(site: Path) -> None:
    assert [page for page in PAGES if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()] == []
    assert 'url=docs/site/contents.html"' in (site / "index.html").read_text()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    with (site / "objects.inv").open("rb") as written:
        known = InventoryFile.load(written, "", lambda uri, path: path)
    names = {name for kind, found in known.items() if kind.startswith("py:") for name in found}
    public = {name for name in ftlib.__all__ if not inspect.ismodule(getattr(ftlib, name))}
    assert {f"ftlib.{name}" for name in public} <= names
    assert "ftlib.FTLib.allreduce_average" in names, "what a class inherits belongs to it"
    assert {f"ftlib.lightning.{name}" for name in ("Batches", "FTCallback", "FTStrategy")} <= names
    assert {"ftlib.accelerate.FTAccelerator", "ftlib.transformers.FTTrainer", "ftlib.transformers.FTTrainingArguments"} <= names
    modules = ("manager", "ddp", "optim", "data", "local_sgd", "process_group", "checkpointing", "futures", "parameter_server")
    for module in (importlib.import_module(f"ftlib.torchft.{name}") for name in modules):
        assert {f"{module.__name__}.{name}" for name in module.__all__ if not name.startswith("_")} <= names


def test_the_reference_leads_to_torchs_own(site: Path) -> None:
    assert "https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor" in (site / "docs/site/api/ftlib.html").read_text()


def test_it_is_whole_offline(site: Path) -> None:
    """Search included: nothing is loaded from another place. (Links may lead there.)"""
    assert (site / "searchindex.js").stat().st_size > 100_000
    loads = re.compile(r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link [^>]*stylesheet[^>]* href=\"(?:https?:)?//")
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []
