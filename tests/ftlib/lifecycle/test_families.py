"""Frameworks of different families do not mix in one job: whoever joins is refused. Real agents, in one process."""

from __future__ import annotations

import re

import pytest

from ftlib import FTLib, JoinError
from ftlib.frameworks import FRAMEWORKS, Framework, framework_by_name
from ftlib.frameworks.gloo import GlooFramework
from tests.harness.basics import free_ports


class Theirs(GlooFramework):
    """A third party's: it need not say more than its name."""

    name = "theirs"


class Fork(GlooFramework):
    """One that says it is like another one."""

    name = "fork"

    @property
    def family(self) -> str:
        return "theirs"


def started(framework: str | Framework, address: str, bind: str) -> FTLib:
    settings = {"job": f"families-{address}", "introducers": [address], "bind": bind, "agent": "thread", "join_timeout": 20.0}
    return FTLib.init(framework=framework, config={}, **settings)


def made(name: str) -> Framework:
    return {"theirs": Theirs, "fork": Fork}.get(name, lambda: framework_by_name(name))()


def test_families() -> None:
    """A third party's is alone with its name, unless it says otherwise."""
    names = [*FRAMEWORKS, "theirs", "fork"]
    families = {name: made(name).family for name in names}
    assert families == {name: name for name in names} | {
        "fork": "theirs",
        "isolated:gloo": "gloo",
        "isolated:nccl": "nccl",
        "isolated:rehearsal": "rehearsal",
    }


@pytest.mark.parametrize(
    ("job", "newcomer"),
    [
        ("gloo", "rehearsal"),
        ("rehearsal", "gloo"),
        ("gloo", "isolated:nccl"),
        ("gloo", "memory"),
        ("gloo", "theirs"),
        ("theirs", "gloo"),
    ],
)
def test_a_newcomer_of_another_family_is_refused(job: str, newcomer: str) -> None:
    """It is told both sides' families; the job does not even notice."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with started(made(job), address, address) as ft:
        view = ft.view
        stranger = made(newcomer)
        with pytest.raises(JoinError) as refused:
            started(stranger, address, "127.0.0.1:0")
        theirs, ours = stranger.family, made(job).family
        assert re.search(f"refused.*framework={theirs}'.*framework={ours}'.*make them equal", str(refused.value))
        assert ft.barrier()
        assert ft.view == view


def test_a_third_partys_mixes_with_those_of_its_family() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with started(Theirs(), address, address) as ft, started(Fork(), address, "127.0.0.1:0") as other:
        assert other.view is None, "met, not refused: its first call admits it"
        assert ft.barrier()
