"""``FTLib.load``: a job that begins from a checkpoint. Workers as threads, with the real agents."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import ftlib.checkpoints.resume as resuming
from ftlib import ConfigError, FTLib, FTLibError
from ftlib.checkpoints.depot import DirectoryDepot
from ftlib.checkpoints.names import Name
from tests.ftlib.crews.saving import Trainee, all_of, crew, equal, steps
from tests.ftlib.state.test_checkpoints import same
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, company, in_thread


def trained(path: Path, size: int, count: int) -> Any:
    """The state after so many steps of so many workers, saved at its end."""
    with crew(size) as trainees:
        steps(count, trainees)
        all_of(trainees, lambda trainee: trainee.ft.save(path))
        kept = trainees[0].state()
        all_of(trainees, lambda trainee: trainee.ft.close())
    return kept


def loading(trainee: Trainee, path: Path) -> tuple[threading.Thread, list[BaseException]]:
    """It loads beside the test: the thread, and what it raises."""
    errors: list[BaseException] = []

    def load() -> None:
        try:
            trainee.ft.load(path)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            errors.append(error)

    return in_thread(load), errors


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_workers_goes_on_from_it(tmp_path: Path, size: int) -> None:
    kept = trained(tmp_path, 2, 4)
    with crew(size) as trainees:
        loaded = all_of(trainees, lambda trainee: trainee.ft.load(tmp_path))
        assert loaded == [resuming.Loaded(4, tmp_path / str(Name(4, 1)))] * size
        for trainee in trainees:
            assert trainee.ft.step == 4
            assert same(trainee.state().copies, kept.copies)
        assert all_of(trainees, lambda trainee: trainee.ft.load(tmp_path / "other")) == loaded, "once is enough"
        steps(2, trainees)
        assert {trainee.ft.step for trainee in trainees} == {6}
        assert all(equal(trainee, trainees[0]) for trainee in trainees)
        assert sum(trainee.ft.metrics()["state_loads"] for trainee in trainees) == 2 * size - 1
        assert not any(any(trainee.ft._lives.life.resumption._decided.values()) for trainee in trainees), (
            "nobody needs it any more"
        )


def test_a_joiner_gets_the_state_from_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    trained(tmp_path, 1, 3)
    with company(1) as made:
        first = Trainee(made.members[0])
        first.register()
        assert first.ft.load(tmp_path) is not None
        goals: list[int] = []

        def until_the_goal() -> None:
            while not goals or first.ft.step < goals[0]:
                first.step()

        def join() -> Trainee:
            second = Trainee(made.init())
            second.register()
            assert second.ft.load(tmp_path) is None
            second.step()
            goals.append(second.ft.step + 3)
            while second.ft.step < goals[0]:
                second.step()
            return second

        _, second = at_once(until_the_goal, join)
        assert equal(first, second)
        assert "a joiner gets its state from the job" in caplog.text


def test_without_a_checkpoint_it_starts_from_scratch_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with crew(2) as trainees:
        assert all_of(trainees, lambda trainee: trainee.ft.load(tmp_path)) == [None, None]
        assert "there is no complete checkpoint" in caplog.text
        trained(tmp_path / "later", 1, 1)
        loaded = all_of(trainees, lambda trainee: trainee.ft.load(tmp_path / "later"))
        assert [each.step for each in loaded] == [1, 1], "another place may be tried"
        steps(1, trainees)
        assert equal(*trainees)


def test_the_others_need_not_have_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host has disks of its own; only the first one's has something."""
    kept = trained(tmp_path / "first", 1, 3)
    with crew(3) as trainees:
        own = {trainee.ft: tmp_path / ("first" if not index else f"host-{index}") for index, trainee in enumerate(trainees)}
        loaded = all_of(trainees, lambda trainee: trainee.ft.load(own[trainee.ft]))
        assert [each.path for each in loaded] == [tmp_path / "first" / str(Name(3, 1))] * 3
        assert all(same(trainee.state().copies, kept.copies) for trainee in trainees)


def test_a_setting_loads_it_without_a_line_in_the_program(tmp_path: Path) -> None:
    kept = trained(tmp_path, 1, 3)
    with crew(2, resume=str(tmp_path)) as trainees:
        assert [trainee.ft.step for trainee in trainees] == [3, 3]
        assert all(same(trainee.state().copies, kept.copies) for trainee in trainees)
        steps(1, trainees)
        assert equal(*trainees)


def test_a_damaged_one_is_warned_of_and_if_all_are_nothing_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with crew(1) as [trainee]:
        for _ in range(2):
            trainee.step()
            trainee.ft.save(tmp_path, wait=True)
    (tmp_path / str(Name(2, 1)) / "__0_0.distcp").unlink()
    with crew(1) as [trainee]:
        assert trainee.ft.load(tmp_path) == (1, tmp_path / str(Name(1, 1)))
        assert "is damaged, and an older one is taken: step-000000000002" in caplog.text
    (tmp_path / str(Name(1, 1)) / ".metadata").unlink()
    with crew(1) as [trainee], pytest.raises(ConfigError, match=r"no checkpoint in .* is intact"):
        trainee.ft.load(tmp_path)


def test_one_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 1, 1)
    with company(1) as made:
        made.members[0].register_state(model=nn.Linear(2, 2))
        with pytest.raises(ConfigError, match=r"load: .*step-.*register the same everywhere"):
            made.members[0].load(tmp_path)


class Scaled(Trainee):
    """It has a number of its own in the state; its program takes that out of what it loads, and refuses a large one."""

    most = 10.0

    def __init__(self, ft: FTLib) -> None:
        super().__init__(ft)
        self.scale = 1.0

    def register(self) -> None:
        self.ft.register_state(
            model=self.model, optimizer=self.optimizer, state_dict=lambda: {"scale": self.scale}, load_state_dict=self.take
        )

    def take(self, state: dict[str, float]) -> None:
        if state["scale"] > self.most:
            raise ValueError(f"{state['scale']} is too large")
        self.scale = state.pop("scale")


def scaled(path: Path, scale: float) -> None:
    """A checkpoint of step 2 with it."""
    with company(1) as made:
        trainee = Scaled(made.members[0])
        trainee.register()
        trainee.scale = scale
        steps(2, [trainee])
        trainee.ft.save(path)


@contextlib.contextmanager
def founders(size: int) -> Iterator[list[Scaled]]:
    with company(size) as made:
        trainees = [Scaled(ft) for ft in made.members]
        at_once(*[trainee.register for trainee in trainees])
        yield trainees


def refused(trainee: Trainee, path: Path) -> str:
    with pytest.raises(ConfigError) as found:
        trainee.ft.load(path)
    return str(found.value)


def test_the_others_get_what_was_read_whatever_the_readers_program_does_to_it(tmp_path: Path) -> None:
    scaled(tmp_path, 8.0)
    with founders(2) as trainees:
        all_of(trainees, lambda trainee: trainee.ft.load(tmp_path))
        assert [trainee.scale for trainee in trainees] == [8.0, 8.0]  # type: ignore[attr-defined]


def test_a_load_that_is_refused_changes_nothing_and_all_are_told(tmp_path: Path) -> None:
    """The model and the optimizer fit, and would have been loaded by then. Another place may be tried."""
    scaled(tmp_path / "large", 11.0)
    scaled(tmp_path / "small", 9.0)
    with founders(2) as trainees:
        before = trainees[0].state()
        texts = all_of(trainees, lambda trainee: refused(trainee, tmp_path / "large"))
        first, second = (text.partition(f"{tmp_path / 'large' / str(Name(2, 1))}: load_state_dict: ") for text in texts)
        assert first[0] == "load: " and "11.0 is too large" in first[2]
        assert second[0].startswith("load was refused at ") and second[2] == first[2]
        assert all(same(trainee.state().copies, before.copies) for trainee in trainees)
        assert [each.step for each in all_of(trainees, lambda trainee: trainee.ft.load(tmp_path / "small"))] == [2, 2]
        steps(1, trainees)
        assert equal(*trainees)


def test_if_none_is_intact_the_others_are_told_at_once(tmp_path: Path) -> None:
    scaled(tmp_path, 8.0)
    (tmp_path / str(Name(2, 1)) / "manifest.json").unlink()
    with founders(2) as trainees:
        texts = all_of(trainees, lambda trainee: refused(trainee, tmp_path))
        assert all(f"no checkpoint in {tmp_path} is intact" in text for text in texts)
        steps(1, trainees)
        assert equal(*trainees)


def test_who_alone_refuses_it_does_not_count_as_one_that_has_it(tmp_path: Path) -> None:
    scaled(tmp_path, 8.0)
    with founders(2) as trainees:
        first, second = trainees
        second.most = 5.0
        loaded = all_of(trainees, lambda trainee: refused(trainee, tmp_path) if trainee is second else first.ft.load(tmp_path))
        assert loaded[0].step == 2 and "8.0 is too large" in loaded[1]

        def goes_on() -> None:
            with pytest.raises(ConfigError, match=r"8\.0 is too large"):
                second.step()
            second.ft.close()

        at_once(first.step, goes_on)
        assert first.ft.step == 3


@pytest.mark.parametrize("who", [0, 1])
def test_a_load_that_is_interrupted_leaves_no_half_of_it(tmp_path: Path, who: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C, say, when a part is loaded. Where the program goes on all the same, all begin with one state."""
    monkeypatch.setattr(resuming, "POLL", 0.1)
    trained(tmp_path, 1, 2)
    with crew(2) as trainees:
        interrupted, other = trainees[who], trainees[1 - who]
        model, load = interrupted.model, interrupted.model.load_state_dict

        def halfway(state: dict[str, Any]) -> None:
            model.load_state_dict = load  # type: ignore[method-assign]
            model[0].load_state_dict({name: state[f"0.{name}"] for name in ("weight", "bias")})
            raise KeyboardInterrupt

        model.load_state_dict = halfway  # type: ignore[assignment, method-assign]
        other.ft._lives.life.resumption._patience = 0.7

        def begin(trainee: Trainee) -> None:
            if trainee is interrupted:
                with pytest.raises(KeyboardInterrupt):
                    trainee.ft.load(tmp_path)
            elif who == 0:  # which reads, and nobody else has begun with anything
                with pytest.raises(ConfigError, match="has not called load"):
                    trainee.ft.load(tmp_path)
            else:
                assert trainee.ft.load(tmp_path) is not None

        all_of(trainees, begin)
        steps(2, trainees)
        assert equal(*trainees) and other.ft.step == (2 if who == 0 else 4)


def test_too_late_or_only_at_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "POLL", 0.1)
    trained(tmp_path, 1, 1)

    def hurried(trainees: list[Trainee]) -> list[Trainee]:
        for trainee in trainees:  # not by the setting: they shall have the time to meet
            trainee.ft._lives.life.resumption._patience = 0.7
        return trainees

    with crew(2) as trainees:
        senior, junior = hurried(trainees)
        with pytest.raises(ConfigError, match=r"load was called here, but within 0.7 s not by .*call it at every worker"):
            senior.ft.load(tmp_path)
    with crew(2) as trainees:
        senior, junior = hurried(trainees)
        with pytest.raises(ConfigError, match=r"has not called load within 0.7 s, but this worker has"):
            junior.ft.load(tmp_path)
        steps(1, trainees)
        with pytest.raises(ConfigError, match="has finished 1 steps already"):
            senior.ft.load(tmp_path)


@pytest.mark.parametrize("size", [2, 3])
def test_the_reader_ends_while_the_others_wait(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next senior reads instead."""
    trained(tmp_path, 1, 3)
    with crew(size) as trainees:
        senior, *rest = trainees
        original = DirectoryDepot.newest

        def leaving(depot: DirectoryDepot) -> Any:
            if threading.current_thread() is thread:
                senior.ft.leave()
            return original(depot)

        monkeypatch.setattr(DirectoryDepot, "newest", leaving)
        errors: list[BaseException] = []

        def load() -> None:
            try:
                senior.ft.load(tmp_path)
            except BaseException as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        thread = threading.Thread(target=load)  # known to ``leaving`` before it runs
        thread.start()
        loaded = all_of(rest, lambda trainee: trainee.ft.load(tmp_path))
        thread.join(TIMEOUT)
        assert len(errors) == 1
        assert {each.step for each in loaded} == {3}
        steps(1, rest)
        assert {trainee.ft.step for trainee in rest} == {4}
        assert all(equal(trainee, rest[0]) for trainee in rest)


def test_the_reader_ends_when_only_some_have_it(tmp_path: Path) -> None:
    """Whoever has not gets it in its first call; nobody goes on from scratch."""
    trained(tmp_path, 1, 3)
    with crew(3) as trainees:
        senior, second, third = trainees
        thread, errors = loading(senior, tmp_path)
        assert third.ft.load(tmp_path) == (3, tmp_path / str(Name(3, 1)))  # the junior one has it
        assert thread.is_alive(), "the reader waits for the second"
        senior.ft.leave()
        thread.join(TIMEOUT)
        assert len(errors) == 1
        eventually(lambda: third.ft.size == 2 and second.ft.step == 3, "the plan says whose state it is")
        loaded: list[Any] = []
        at_once(lambda: (loaded.append(second.ft.load(tmp_path)), second.step()), third.step)
        assert loaded[0].step == 3
        at_once(second.step, third.step)
        assert second.ft.step == third.ft.step == 5
        assert equal(second, third)


def test_the_reader_ends_between_two_loads(tmp_path: Path) -> None:
    """The next one reads in the same round as the others ask for."""
    trained(tmp_path / "there", 1, 2)
    with crew(3) as trainees:
        assert all_of(trainees, lambda trainee: trainee.ft.load(tmp_path / "none")) == [None] * 3
        senior, *rest = trainees
        senior.ft.leave()
        loaded = all_of(rest, lambda trainee: trainee.ft.load(tmp_path / "there"))
        assert [each.step for each in loaded] == [2, 2]
        steps(1, rest)
        assert equal(*rest)


def test_the_reader_ends_when_only_some_know_that_there_is_nothing(tmp_path: Path) -> None:
    """Who was told so tells the others."""
    with crew(3) as trainees:
        senior, second, third = trainees
        thread, errors = loading(senior, tmp_path)
        assert second.ft.load(tmp_path) is None
        assert thread.is_alive(), "the reader waits for the third"
        senior.ft.leave()
        thread.join(TIMEOUT)
        assert len(errors) == 1
        assert third.ft.load(tmp_path) is None
        steps(1, [second, third])
        assert equal(second, third)


def test_no_founder_begins_without_what_the_others_have(tmp_path: Path) -> None:
    """As before, but the second does not call ``load`` at all any more."""
    trained(tmp_path, 1, 3)
    with crew(2) as trainees:
        second = trainees[1]
        assert isinstance(second.ft._lives.life.resumption, resuming.Resumption)
        session = second.ft._plane.session
        assert session is not None
        assert second.ft._plane.resumed(session, "other@3", 3)
        assert not second.ft._lives.life.transfer.load(None, session)  # type: ignore[arg-type] - it needs nothing


def a_founding_with_deaths(chance: random.Random, place: Path) -> None:
    """Founders load ``place``, of step 3, at different moments; some end at any. The others go on from it, all alike."""
    size = chance.choice([2, 3, 4])
    made = Company(size)
    trainees = [Trainee(ft) for ft in made.members]
    ending = chance.sample(trainees, chance.randint(1, size - 1))
    rest = [trainee for trainee in trainees if trainee not in ending]

    def live(trainee: Trainee, before: float, between: float) -> None:
        time.sleep(before)
        with contextlib.suppress(*([FTLibError] if trainee in ending else [])):
            trainee.register()
            time.sleep(between)
            trainee.ft.load(place)
            if trainee not in ending:
                trainee.step()
                trainee.step()

    def end(trainee: Trainee, after: float) -> None:
        time.sleep(after)
        trainee.ft.close()

    lives = [functools.partial(live, trainee, chance.random() * 0.2, chance.random() * 0.1) for trainee in trainees]
    try:
        at_once(*lives, *[functools.partial(end, trainee, chance.random() * 0.6) for trainee in ending])
        assert {trainee.ft.step for trainee in rest} == {5}
        assert all(equal(trainee, rest[0]) for trainee in rest)
    finally:
        all_of(trainees, lambda trainee: trainee.ft.close())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_founders_die_at_any_moment_of_a_load(tmp_path: Path, seed: int) -> None:
    trained(tmp_path, 1, 3)
    a_founding_with_deaths(random.Random(seed), tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_founders_die_at_many_moments_of_a_load(tmp_path: Path) -> None:
    trained(tmp_path, 1, 3)
    for seed in range(300):
        a_founding_with_deaths(random.Random(seed), tmp_path)
