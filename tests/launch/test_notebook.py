"""``Launcher`` in a notebook: a kernel whose loop is running, interrupted, and killed."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from ftlib.launch.processes.process import descendants
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.program import ROOT
from tests.launch.launching import here

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of jupyter's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETUP = f"""
import os, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from ftlib import Launcher
launcher = Launcher(workers_per_host=2, preload=(), transport="local")
def answer():
    print("from worker", os.environ["RANK"])
    return 42
def for_ever(path):
    with open(f"{{path}}/.part{{os.environ['RANK']}}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{{path}}/.part{{os.environ['RANK']}}", f"{{path}}/{{os.environ['RANK']}}")
    threading.Event().wait()
"""


def notebook(path: Path, *cells: str) -> contextlib.AbstractContextManager[NotebookClient]:
    """A notebook of these cells, after ``SETUP``."""
    return opened(path, nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)]))


@contextlib.contextmanager
def opened(path: Path, book: nbformat.NotebookNode) -> Iterator[NotebookClient]:
    """A notebook and its kernel. Nothing that it started is there any more afterwards."""
    before = descendants(os.getpid())
    client = NotebookClient(
        book,
        timeout=int(TIMEOUT),
        startup_timeout=int(TIMEOUT),
        kernel_name="python3",
        resources={"metadata": {"path": str(path)}},
    )
    yield client
    eventually(lambda: not descendants(os.getpid()) - before, lambda: descendants(os.getpid()) - before)


def text(client: NotebookClient, number: int) -> str:
    """What a cell has printed and shown."""
    parts = client.nb.cells[number].outputs
    return "".join(part.get("text", "") + part.get("data", {}).get("text/plain", "") for part in parts)


def test_functions_of_a_notebook_run_and_what_they_print_is_shown(tmp_path: Path) -> None:
    again = "launch = launcher.start(answer)\n(await launch).rank(1)"
    with notebook(tmp_path, "launcher.run(answer).rank(1)", again) as client:
        client.execute()
    assert "from worker 0" in text(client, 1) and "from worker 1" in text(client, 1)
    assert text(client, 1).endswith("42") and text(client, 2).endswith("42")


@pytest.mark.soak
def test_the_example_trains_and_a_worker_dies(tmp_path: Path) -> None:
    """``examples/notebook.ipynb``, as it is."""
    book = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells), "it is kept without outputs"
    with opened(tmp_path, book) as client:
        client.execute()
    first, second = (ast.literal_eval(text(client, number).rpartition("{")[1] + text(client, number).rpartition("{")[2])
                     for number in (3, 5))  # fmt: skip
    assert first["right"] > 0.85 and second["right"] > 0.9
    assert second["steps"] > 3 * first["steps"]


def at_work(client: NotebookClient, path: Path, number: signal.Signals) -> None:
    """Signal the kernel once both workers run."""
    for rank in ("0", "1"):
        here(path, rank)
    assert client.km is not None
    pid = client.km.provisioner.pid
    time.sleep(0.1)
    os.kill(pid, number)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, CellExecutionError), (signal.SIGKILL, DeadKernelError)],
    ids=["interrupted", "killed"],
)
def test_a_kernel_that_is(tmp_path: Path, number: signal.Signals, error: type[Exception]) -> None:
    with notebook(tmp_path, f"launcher.run(for_ever, {str(tmp_path)!r})") as client:
        striker = threading.Thread(target=at_work, args=(client, tmp_path, number))
        striker.start()
        with pytest.raises(error, match="KeyboardInterrupt" if number == signal.SIGINT else "died"):
            client.execute()
        striker.join()
