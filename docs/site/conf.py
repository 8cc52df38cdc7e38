"""The site, made of the same pages that people read in the tree: ``make docs``.

Its source is the whole checkout, so every link leads where it leads in the tree. Nothing is fetched: the names of torch's and
Python's that the reference meets, and where their own sites have them, stand in ``inventories/``.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
import zlib
from pathlib import Path

project = "ftlib"
author = "the authors of ftlib"
project_copyright = f"{author}, Apache-2.0"
release = version = importlib.metadata.version("ftlib")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx"]
root_doc = "docs/site/contents"
include_patterns = ["README.md", "CHANGELOG.md", "docs/*.md", "docs/site/**", "tests/transcripts/golden/README.md"]
exclude_patterns = [".*", "out"]  # or it looks at all files of the environment, twice
myst_heading_anchors = 4
autodoc_member_order = "bysource"

_folder = tempfile.TemporaryDirectory()


def inventory(name: str) -> str:
    """The file with that site's names, in the form that intersphinx reads (version 2, as Sphinx writes it)."""
    names = (Path(__file__).parent / "inventories" / f"{name}.txt").read_bytes()
    head = (
        "Sphinx inventory version 2",
        f"Project: {name}",
        "Version: ",
        "The remainder of this file is compressed using zlib.",
    )
    made = Path(_folder.name) / f"{name}.inv"
    made.write_bytes("".join(f"# {line}\n" for line in head).encode() + zlib.compress(names))
    return str(made)


intersphinx_mapping = {
    "torch": ("https://docs.pytorch.org/docs/stable/", inventory("torch")),
    "python": ("https://docs.python.org/3/", inventory("python")),
}

html_theme = "furo"
html_title = f"ftlib {release}"
html_additional_pages = {"index": "start.html"}
html_copy_source = False
templates_path = ["templates"]
