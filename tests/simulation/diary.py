"""What a history did, written down as it happens: as a script that plays it again, and as a test to keep."""

from __future__ import annotations

from dataclasses import replace

from consensus.simulation import Event, Result, Scenario, World, judge, perform, prepare
from consensus.simulation.script.play import FOUNDING

TEST = '''\
HISTORY = """
{script}
"""


def test_{name}() -> None:
    """{kind}"""
    result = play(Scenario.parse(HISTORY))
    assert result.good, str(result)
'''


def source(scenario: Scenario, name: str = "found", kind: str = "") -> str:
    """A test to be pasted into ``tests/transcripts`` (imports: ``Scenario`` and ``play`` of ``consensus.simulation``)."""
    return TEST.format(script=scenario, name=name, kind=kind or "A history that failed once.")


class Diary:
    """A world in which things are done word by word; ``scenario`` is all that was done so far."""

    def __init__(self, beginning: Scenario) -> None:
        """Found the job of ``beginning``, whose own events are not played."""
        self.scenario = replace(beginning, events=(), rest=0.0)
        self.world: World = prepare(self.scenario)
        hosts = self.world.founders(beginning.size)
        self.world.run_until(lambda: all(host.activated for host in hosts), FOUNDING)
        self._start = self.world.now
        self._offset = 0.0
        self._told = False
        """Whether a violation was raised already."""

    def wait(self, seconds: float) -> None:
        """Time passes: exactly as ``play`` lets it pass."""
        self._offset = round(self._offset + seconds, 6)
        self.scenario = replace(self.scenario, rest=round(self.scenario.rest + seconds, 6))
        self._noting(lambda: self.world.run(max(0.0, self._start + self._offset - self.world.now)))

    def do(self, command: str, *words: object) -> None:
        """Something happens now."""
        event = Event(self._offset, command, tuple(str(word) for word in words))
        self.scenario = replace(self.scenario, events=(*self.scenario.events, event), rest=0.0)
        self._noting(lambda: perform(self.world, event))

    def end(self) -> None:
        """Heal everything, and judge; not after a violation, which the verdict would hide from whoever is to read it."""
        if not self._told:
            self._noting(self._judge)

    def _judge(self) -> None:
        verdict = judge(self.world)
        assert verdict.good, str(verdict)

    def _noting(self, action) -> None:  # type: ignore[no-untyped-def]
        """A violation tells its history."""
        try:
            action()
        except AssertionError as error:
            self._told = True
            kind = Result(self.scenario, self.world, None, str(error)).kind
            error.add_note(f"To keep it, paste this into tests/transcripts:\n\n{source(self.scenario, kind=kind)}")
            raise
