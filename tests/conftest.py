"""What holds for every test."""

import gc

import pytest
from hypothesis import HealthCheck, settings

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
    "tests/processes/test_kills.py",
    "tests/ftlib/test_late_samples.py",
    "tests/ftlib/recovery/test_dying_donors.py",
    "tests/ftlib/recovery/test_layouts.py::test_layouts_survive",
    "tests/simulation/test_stateful.py",
    "tests/processes/",
)
"""They begin first: whatever takes long and begins last is waited for by idle processors."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first."""
    items.sort(key=lambda item: [not item.nodeid.startswith(name) for name in LONGEST])


def pytest_collection_finish() -> None:
    """What has been imported stays: looking through all of torch for garbage, again and again, takes much of a test's time."""
    gc.freeze()
