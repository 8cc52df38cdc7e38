"""The extras of ``setup.cfg``: whatever tells people to install one names one that is there."""

from __future__ import annotations

import configparser
import importlib
import re
import sys
from itertools import chain

import pytest

from ftlib import ConfigError
from ftlib.checkpoints.places import depot_of
from ftlib.data.streams.sources import tar_records

from .pages import PAGES, ROOT

NAMED = re.compile(r"(?:pip install '?|')ftlib\[([\w,]+)\]")


def extras() -> dict[str, list[str]]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return {name: text.split() for name, text in setup["options.extras_require"].items()}


def test_an_extra_that_is_named_is_there() -> None:
    sources = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in ("ftlib", "consensus", "examples", "tests"))
    named = {name for path in [*PAGES, *sources] for found in NAMED.findall(path.read_text()) for name in found.split(",")}
    assert {"s3", "gs", "az", "export", "datasets", "hf", "demo"} <= named
    assert named <= extras().keys()


def test_all_of_them_are_those_for_users() -> None:
    found = extras()
    assert found["all"] == [f"ftlib[{','.join(sorted(found.keys() - {'all', 'docs', 'test'}))}]"]


@pytest.mark.parametrize(
    ("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("gcs", "gcsfs"), ("az", "adlfs"), ("abfs", "adlfs")]
)
def test_a_url_whose_package_is_missing_names_its_extra(scheme: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, scheme, raising=False)
    url = f"{scheme}://bucket/run.tar"
    extra = scheme if scheme in extras() else {"gcs": "gs", "abfs": "az"}[scheme]
    assert any(line.startswith(package) for line in extras()[extra])
    remedy = re.escape(f"pip install 'ftlib[{extra}]', or give")
    with pytest.raises(ConfigError, match=remedy):
        depot_of(url)
    with pytest.raises(ConfigError, match=remedy):
        list(tar_records(url, 0))


@pytest.mark.parametrize(
    ("url", "remedy"),
    [("gs://b/run", "pip install 'ftlib[gs]'"), ("sftp://h/run", "install fsspec, and what it needs for sftp://")],
)
def test_without_fsspec_the_extra_is_named_too(url: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ftlib.checkpoints.remote", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=re.escape(f"need fsspec: {remedy}, or give a directory")):
        depot_of(url)
    with pytest.raises(ConfigError, match=re.escape(f"{remedy}, or give the path of a file")):
        list(tar_records(url, 0))
