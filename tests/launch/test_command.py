"""The command line: what `ftlib run` refuses and what it says then, and the help."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from torch.distributed.run import get_args_parser

from ftlib.cli.main import commands, main
from ftlib.errors import ConfigError
from ftlib.launch.command import run
from ftlib.launch.processes.gpus import Gpus
from ftlib.launch.run import torchrun
from ftlib.launch.run.plan import StartPlan

from .launching import here

OWN = [name for option in run.params for name in option.opts if name.startswith("-")]


def ftlib(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments)


@pytest.mark.parametrize("group", [[], ["keys"], ["checkpoints"]])
def test_the_help_has_whole_sentences(group: list[str]) -> None:
    told = ftlib(*group, "--help").output
    assert "..." not in told.replace("[ARGS]...", "")
    found = commands.commands[group[0]] if group else commands
    assert isinstance(found, click.Group)
    assert all(each.get_short_help_str(1000) in told for each in found.commands.values())


@pytest.mark.parametrize("group", ["keys", "checkpoints"])
def test_a_group_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([group])
    said = capsys.readouterr()
    assert f"Usage: ftlib {group}" in (said.err + said.out).splitlines()[0]
    assert len((said.err + said.out).splitlines()) > 5


@pytest.mark.parametrize("name", [name for each in get_args_parser()._actions for name in each.option_strings])
def test_every_option_of_torchrun_is_known(name: str) -> None:
    """Those of the torch that is installed: with dashes and with underscores."""
    if name in OWN or name in ("-h", "--help"):
        return
    dashed = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
    told = ftlib("run", "-n", "2", f"{name}=1" if name.startswith("--") else name, "train.py")
    assert told.exit_code == 2
    assert torchrun.INSTEAD.get(dashed, f"give {dashed}") in " ".join(told.output.split())


def test_what_is_told_leads_to_options_that_are_there() -> None:
    for told in torchrun.INSTEAD.values():
        for word in told.replace(",", " ").replace(":", " ").split():
            assert not word.startswith("-") or word in OWN, word


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--max_restarts", "1"), "no option --max_restarts: give --max-restarts."),
        (("--max-restart", "1"), "Did you mean --max-restarts?"),
        (("--epochs", "3"), "no option --epochs; what is for the script stands after it."),
        (("--nproc_per_node", "3"), "--nproc_per_node is torchrun's: give -n N, or -n auto, gpu or cpu."),
    ],
)
def test_an_unknown_option_before_the_script(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "-n", "2", *given, "train.py"])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (["run", "-n", "2", "--hosts"], "ftlib run --help"),
        (["keys", "drop", "--x"], "ftlib keys drop --help"),
        (["status", "--timeout"], "ftlib status --help"),
        (["stauts"], "ftlib --help"),
    ],
)
def test_a_wrong_command_line_leads_to_the_help_of_that_command(
    given: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"See {where}")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["run", "-n", "2", "tr"], "file"),
        (["run", "-n", "2", "train.py", "--data", "fi"], "file"),
        (["run", "-n", "2", "--resume", "ch"], "dir"),
        (["run", "-n", "2", "--log-dir", "lo"], "file"),
        (["checkpoints", "list", "ch"], "dir"),
        (["keys", "rotate", "se"], "file"),
    ],
)
def test_a_shell_completes_names_of_files_where_they_are_meant(words: list[str], kind: str) -> None:
    [found] = ShellComplete(commands, {}, "ftlib", "_FTLIB_COMPLETE").get_completions(words[:-1], words[-1])
    assert (found.type, found.value) == (kind, words[-1])


@pytest.mark.process
def test_what_follows_the_script_is_the_scripts(tmp_path: Path) -> None:
    from .helpers import cli

    (tmp_path / "show.py").write_text("import sys; print(sys.argv[1:])")
    done = cli("run", "-n", 1, "show.py", "--nproc-per-node", 3, "-n", "--", "--hosts=a", cwd=tmp_path)
    assert "['--nproc-per-node', '3', '-n', '--', '--hosts=a']" in done.stdout
    assert done.returncode == 0


class TestCount:
    def test_auto_is_the_gpus_else_the_processors(self) -> None:
        from ftlib.launch.command import _count_here
        from ftlib.launch.processes.gpus import Gpu

        cores = len(os.sched_getaffinity(0))
        assert _count_here(3, 2, Gpus()) == 6
        assert _count_here("auto", 1, Gpus(missing="no driver")) == _count_here("cpu", 1, Gpus()) == cores
        two = Gpus((Gpu("H100", "GPU-1"), Gpu("H100", "GPU-2")))
        assert _count_here("auto", 1, two) == _count_here("gpu", 2, two) == 2
        assert _count_here("cpu", 1, two) == cores
        with pytest.raises(ConfigError, match="no driver"):
            _count_here("gpu", 1, Gpus(missing="no driver"))
        with pytest.raises(ConfigError, match="no whole replicas"):
            _count_here("auto", 3, two)

    @pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
    def test_nonsense(self, wrong: str) -> None:
        assert "neither a number of at least 1 nor auto, gpu or cpu" in ftlib("run", "-n", wrong, "train.py").output


class TestResumeRequired:
    def test_it_needs_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").touch()
        wanted = {"command": (sys.executable,), "workers": 2, "resume": tmp_path}
        assert StartPlan(**wanted)  # a first run begins from scratch
        with pytest.raises(ConfigError, match="no complete checkpoint in"):
            StartPlan(**wanted, resume_required=True)
        (tmp_path / ".step-000000000500-epoch-00000003-57dbaa.part").mkdir()
        with pytest.raises(ConfigError, match="no complete checkpoint in"):
            StartPlan(**wanted, resume_required=True)
        whole = tmp_path / "step-000000000400-epoch-00000003"
        whole.mkdir()
        assert StartPlan(**wanted, resume_required=True)
        assert StartPlan(**{**wanted, "resume": whole}, resume_required=True)
        with pytest.raises(ConfigError, match="no complete checkpoint in"):
            StartPlan(**{**wanted, "resume": tmp_path / "step-000000000401-epoch-00000003"}, resume_required=True)

    def test_of_shards_all_need_one_of_the_same_step_and_epoch(self, tmp_path: Path) -> None:
        wanted = {"command": (sys.executable,), "workers": 2, "shards": 2, "resume": tmp_path, "resume_required": True}
        for shard, step in ((0, 400), (1, 300)):
            (tmp_path / f"shard-{shard}-of-2" / f"step-{step:012d}-epoch-00000001").mkdir(parents=True)
        with pytest.raises(ConfigError, match="no complete checkpoint in"):
            StartPlan(**wanted)
        (tmp_path / "shard-1-of-2" / "step-000000000400-epoch-00000002").mkdir()
        with pytest.raises(ConfigError, match="no complete checkpoint in"):  # of two runs, perhaps
            StartPlan(**wanted)
        (tmp_path / "shard-1-of-2" / "step-000000000400-epoch-00000001").mkdir()
        assert StartPlan(**wanted)
        assert StartPlan(**{**wanted, "resume": tmp_path / "step-000000000400-epoch-00000001"})
        with pytest.raises(ConfigError, match="no complete checkpoint in"):
            StartPlan(**{**wanted, "resume": tmp_path / "step-000000000300-epoch-00000001"})

    def test_alone_it_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "train.py").touch()
        with pytest.raises(ConfigError, match="by --resume DIRECTORY"):
            CliRunner().invoke(commands, ["run", "-n", "1", "--resume-required", "train.py"], catch_exceptions=False)


@pytest.mark.process
def test_equal_lines_are_one_on_a_terminal_and_whole_in_the_files(tmp_path: Path) -> None:
    """The workers' lines come within a moment of each other: each waits for a file before it writes."""
    import pexpect

    from tests.harness.program import clean

    (tmp_path / "talk.py").write_text(
        "import os, time\n"
        "own = os.environ['FTLIB_WORKER_INDEX']\n"
        "open('.' + own, 'w').write(str(os.getpid()))\n"
        "os.rename('.' + own, own)\n"
        "while not os.path.exists('go'): time.sleep(0.005)\n"
        "for number in range(3): print('line', number, flush=True)\n"
        "print('of', own, flush=True)\n"
    )
    line = ["-m", "ftlib.cli.main", "run", "-n", "3", "--log-dir", "logs", "talk.py"]
    shell = pexpect.spawn(sys.executable, line, cwd=str(tmp_path), env=clean(NO_COLOR="1"), encoding="utf-8", timeout=60)
    try:
        for index in range(3):
            here(tmp_path, str(index))
        (tmp_path / "go").touch()
        shell.expect(pexpect.EOF)
    finally:
        shell.close(force=True)
    shown = [each for each in str(shell.before).splitlines() if each.startswith("[worker")]
    for index in range(3):
        log = (tmp_path / "logs" / f"worker-{index}.log").read_text().splitlines()[1:]
        assert log == ["line 0", "line 1", "line 2", f"of {index}"]
        assert f"[worker {index}] of {index}" in shown
    # On a busy machine one of the workers may be too late to be folded with the others; nothing is shown twice or left out.
    for text in ("line 0", "line 1", "line 2"):
        names = [each.partition("]")[0] for each in shown if each.endswith(f"] {text}")]
        assert 1 <= len(names) <= 3
