"""What must be true of all workers' lines, whatever was killed when: no step lost, none divergent, no survivor that erred."""

from __future__ import annotations

from collections.abc import Iterable

from .cluster import Worker


class Verdict:
    """Collects violations, worker by worker; feed it again with the same workers as they go on."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.steps = 0
        """The newest step that was checked."""
        self._hashes: dict[int, tuple[str, int, str]] = {}
        self._seen: dict[int, int] = {}

    def check(self, workers: Iterable[Worker]) -> None:
        """Compare all lines that are final.

        The last line of a worker that was killed does not count: it may have finished, an instant before its death, a call that
        no survivor has finished; they redo that one without it.
        """
        for worker in workers:
            final = len(worker.calls)
            if worker.killed or worker.code is not None:
                final -= 0 if worker.code == 0 else 1
            else:
                final -= 1  # it may be killed right now
            for index in range(self._seen.get(worker.pid, 0), final):
                self._line(worker, index)
            self._seen[worker.pid] = max(final, self._seen.get(worker.pid, 0))

    def _line(self, worker: Worker, index: int) -> None:
        name, line = worker.task.name, worker.calls[index]
        step = line["step"]
        lives_on = index and line.get("lifetime") == worker.calls[index - 1].get("lifetime")  # else it has just joined
        if lives_on and step != worker.calls[index - 1]["step"] + 1:
            self.violations.append(f"{name}: step {worker.calls[index - 1]['step']} was followed by {step}")
        if index and line["epoch"] < worker.calls[index - 1]["epoch"]:
            self.violations.append(f"{name}: epoch {worker.calls[index - 1]['epoch']} was followed by {line['epoch']}")
        who = line.get("who", 0)
        filler = line.get("samples") == 0  # then it had nothing to average, and its gradients weigh nothing
        if lives_on and "who" in line and not filler and not who >> worker.task.slot & 1:
            self.violations.append(f"{name}: its gradients are not in step {step} (who={who:b})")
        following = worker.calls[index + 1 : index + 2]
        if following and following[0].get("lifetime") != line.get("lifetime"):
            return  # the last call before it was voted out: like a killed one's, it may be one that no survivor has finished
        known = self._hashes.setdefault(step, (line.get("hash", ""), who, name))
        if known[:2] != (line.get("hash", ""), who):
            self.violations.append(
                f"step {step}: {name} has {line.get('hash')} of {who:b}, {known[2]} has {known[0]} of {known[1]:b}"
            )
        self.steps = max(self.steps, step)
