"""The live view of a launch: on a terminal it shows hosts and workers, and no line of output is lost or changed by it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pexpect
import pytest

from ftlib.launch.director.output.panel import HostFacts, LaunchFacts, Panel
from tests.harness.program import ROOT, clean


class Screen:
    """As much of a terminal as is used: text, newlines, carriage returns, up, erase to the end."""

    _TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")

    def __init__(self) -> None:
        self.rows = [""]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        for match in self._TOKEN.finditer(text):
            number, kind, start, down, plain = match.groups()
            if start:
                self._column = 0
            elif down:
                self._row, self._column = self._row + 1, 0
                self.rows += [""] * (self._row + 1 - len(self.rows))
            elif plain:
                row = self.rows[self._row].ljust(self._column)
                self.rows[self._row] = row[: self._column] + plain + row[self._column + len(plain) :]
                self._column += len(plain)
            elif kind == "A":
                self._row -= int(number or 1)
                assert self._row >= 0
            elif kind == "J":
                self.rows[self._row :] = [self.rows[self._row][: self._column]]
            else:
                assert kind == "m", f"a sequence {kind}"

    @property
    def text(self) -> list[str]:
        return [row.rstrip() for row in self.rows if row.strip()]


FACTS = LaunchFacts("job-1", [HostFacts("a", "up", 2, 2, 2, 1), HostFacts("b", "resting", 0, 2, 0, 0, "Permission denied")])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_shows_hosts_and_workers_below_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream, screen = Terminal(), Screen()
    panel = Panel(stream)
    panel.draw()
    assert not stream.getvalue(), "nothing is known yet"
    panel.update(FACTS)
    panel.draw()
    screen.write(stream.getvalue())
    shown = screen.text
    assert shown[0].startswith("job-1, 0:0") and "2 of 4 workers, 2 in the view, 1 restarts" in shown[0]
    assert re.match(r"a +up +2/2 +2 +1$", shown[2]) and re.match(r"b +resting +0/2 +0 +0 +Permission denied$", shown[3])


def test_lines_of_others_land_above_it_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream, screen = Terminal(), Screen()
    panel = Panel(stream)
    panel.update(FACTS)
    for number in range(30):
        panel.erase()
        stream.write(f"line {number}\n")
        panel.draw()
        if number % 3 == 0:
            stream.write(f"a print of the program's own {number}\n")
    panel.erase()
    screen.write(stream.getvalue())
    prints = {number: [f"a print of the program's own {number}"] if number % 3 == 0 else [] for number in range(30)}
    assert screen.text == [line for number in range(30) for line in (f"line {number}", *prints[number])]


def test_many_hosts_are_cut_to_those_in_trouble_and_a_small_terminal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    stream, screen = Terminal(), Screen()
    hosts = [HostFacts(f"host{number}", "up", 1, 1, 1, 0) for number in range(50)]
    panel = Panel(stream)
    panel.update(LaunchFacts("job-1", [*hosts, HostFacts("ill", "resting", 0, 1, 0, 0, "x" * 200)]))
    panel.draw()
    screen.write(stream.getvalue())
    assert len(screen.rows) <= 9 and max(map(len, screen.rows)) < 40


@pytest.mark.parametrize("term", ["dumb", "", "xterm"])
def test_it_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    assert Panel.possible(Terminal()) is (term not in ("dumb", ""))
    assert not Panel.possible(io.StringIO()) and not Panel.possible(None)


PROGRAM = """
import os, sys, time
index = os.environ["FTLIB_WORKER_INDEX"]
while not os.path.exists("go"):
    time.sleep(0.005)
for number in range(400):
    print("line", index, number, flush=True)
    print("error", index, number, file=sys.stderr, flush=True)
    if number % 100 == 99:
        time.sleep(0.7)  # so that it is drawn between lines
"""


@pytest.mark.process
def test_on_a_terminal_every_line_is_there_once_and_the_view_goes_with_the_launch(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["-m", "ftlib.launch", "--hosts", "localhost,127.0.0.1", "--transport", "local", "-n", "1", "program.py"]
    environment = clean(TERM="xterm", PYTHONPATH=str(ROOT))
    child = pexpect.spawn(
        sys.executable, words, cwd=str(tmp_path), env=environment, encoding="utf-8", timeout=120, dimensions=(40, 120)
    )
    child.expect_exact("2 of 2 workers")
    shown = child.before + child.after
    (tmp_path / "go").touch()  # both are in the view, however long one of them took to start
    child.expect(pexpect.EOF)
    child.wait()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", shown + child.before)
    assert "localhost" in shown and re.search(r"up +1/1", shown), "the view was drawn"
    screen = Screen()
    screen.write(shown)
    for host, index in (("localhost", 0), ("127.0.0.1", 1)):
        for kind in ("line", "error"):
            found = [row for row in screen.text if row.startswith(f"[{host}:0] {kind} ")]
            assert found == [f"[{host}:0] {kind} {index} {number}" for number in range(400)]
    left = [row for row in screen.text if "/1 " in row or "in the view" in row]
    assert not left, "what was drawn is erased"
