"""``ftlib.consensus`` is ``consensus``: each import in an interpreter of its own, as the order matters."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "lines",
    [
        "import ftlib.consensus; import consensus; assert ftlib.consensus is consensus",
        "import ftlib, consensus; assert ftlib.consensus is consensus",
        "from ftlib import consensus as alias; import consensus; assert alias is consensus",
        "from ftlib.consensus import Gossip; import consensus; assert Gossip is consensus.Gossip",
        "import ftlib.consensus.view as a; import consensus.view as b; assert a is b; assert b.__spec__.name[0] == 'c'",
        "import consensus.view as b; import ftlib.consensus.view as a; assert a is b; assert b.__spec__.name[0] == 'c'",
        "from ftlib.consensus.wire.keys import Key as a; from consensus import Key as b; assert a is b",
        """
import consensus.runtime.agent.driver, ftlib.consensus.runtime.agent.driver, sys, importlib
assert sys.modules['ftlib.consensus.runtime'] is consensus.runtime
importlib.reload(consensus.view)""",
        "import pickle, ftlib.consensus as c; assert pickle.loads(pickle.dumps(c.Policy.ANY)) is c.Policy.ANY",
        """
try:
    import ftlib.consensus.nothing
except ModuleNotFoundError as error:
    assert error.name == 'consensus.nothing'
else:
    raise AssertionError""",
    ],
)
def test_both_names_are_one_module(lines: str) -> None:
    line = [sys.executable, "-W", "error", "-c", lines]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_alias_is_imported_only_by_who_asks() -> None:
    lines = "import ftlib, sys; assert 'consensus' not in sys.modules; assert len(sys.meta_path) == n"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; n = len(sys.meta_path); {lines}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
