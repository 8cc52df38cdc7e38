"""What holds for every test."""

import asyncio
import gc
import inspect
import math
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.harness import gpu
from tests.harness.basics import PATIENT
from tests.harness.nursery import Nursery

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# Here and in all processes of tests: who asks CUDA itself whether there is a GPU, as optimizers do, spoils it for later forks.

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what it runs in the background: programs of tests would inherit that, and no Ctrl-C would reach them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

FUZZ = "fuzz"
"""The profile of ``make fuzz``."""

settings.register_profile(
    "ftlib",
    deadline=None,  # speed is measured in benchmarks/: a busy machine must not fail what is right
    derandomize=True,  # one commit, one verdict; ``make fuzz`` looks further
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(FUZZ, settings.get_profile("ftlib"), derandomize=False, max_examples=300, print_blob=True)
settings.load_profile("ftlib")  # --hypothesis-profile comes later, and is the one that holds then

LONGEST = (
    "tests/demo/test_demo.py::test_every_promise_is_kept",
    "tests/examples/",
    "tests/documents/test_snippets.py::test_the_tutorials_snippets_run",
    "tests/processes/faults/test_kills.py",
    "tests/ftlib/backup/test_late_samples.py",
    "tests/ftlib/recovery/test_dying_donors.py",
    "tests/ftlib/recovery/test_call_layouts.py::test_layouts_survive",
    "tests/simulation/histories/test_stateful.py",
    "tests/processes/",
)
"""They begin first: whatever takes long and begins last is waited for by idle processors."""

ON_A_LOOP = 180.0
"""Seconds that a test that is a coroutine may take."""
_PROGRAMS = ("programs.learner", "programs.stepper", "programs.reader", "stage.actors")
PREPARED = (*(f"processes.{name}" for name in _PROGRAMS), "harness.forked", "harness.program", "collective.parts")
"""Modules that the fork server has ready."""


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where workers and programs come from: one fork server for all processes of this run of pytest."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with Nursery(shared / "nursery", *(f"tests.{name}" for name in PREPARED), settings=PATIENT) as nursery:
        yield nursery


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test on a GPU leaves itself out where there is none, before any fixture is made. Here for all: one line at the end."""
    if item.get_closest_marker("gpu") is not None and (why := gpu.missing()):
        pytest.skip(why)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on a loop of its own, bounded."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def bounded() -> None:
        async with asyncio.timeout(ON_A_LOOP):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    asyncio.run(bounded())
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest comes first; unless there may be no time for all, as it would leave none for many others."""
    if config.getoption("until", math.inf) < math.inf:
        return
    items.sort(key=lambda item: [not item.nodeid.startswith(name) for name in LONGEST])


def pytest_collection_finish() -> None:
    """What has been imported stays: looking through all of torch for garbage, again and again, takes much of a test's time.

    So does looking for it after every few hundred objects: a simulation makes millions, and leaves hardly any circle.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
