"""``ftlib keys``, and the secret of a run: drawn where the user has none, found by ``ftlib status``, seen by nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from consensus import Config, Gossip, KeyRing, format_address
from ftlib.cli.main import main
from ftlib.cli.status import fetch_status
from ftlib.errors import ConfigError, FTLibError
from ftlib.launch.agent.fences import Fences
from ftlib.launch.processes.credentials import Credentials, drawn_files, drawn_rings, new_secret, ring_of_user
from ftlib.launch.processes.places import remove_lost
from tests.harness.basics import TIMEOUT
from tests.harness.fifo import hanging_for

from .helpers import LIMIT, ROOT, running, script

SECRET = "the secret of this test"


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings of the user's, and a runtime directory of the test's own."""
    for name in [name for name in os.environ if name.startswith("FTLIB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def secrets_in(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def first_in(path: Path) -> Path:
    """A file with one secret, as ``umask 077; ftlib keys new > FILE`` makes it."""
    path.touch(mode=0o600)
    path.write_text(f"{new_secret()}\n")
    return path


class TestKeys:
    def test_a_new_one_each_time(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("keys", "new") == run("keys", "new") == 0
        first, second = capsys.readouterr().out.split()
        assert first != second
        assert len(first) == 43
        KeyRing([first, second])

    def test_rotation(self, own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = first_in(own_place / "secret")
        [old] = secrets_in(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert run("keys", "rotate", path) == 0
        kept, new = secrets_in(path)
        assert kept == old != new
        assert run("keys", "promote", path) == 0
        assert secrets_in(path) == [new, old]
        assert run("keys", "drop", path) == 0
        assert secrets_in(path) == [new]
        out = capsys.readouterr().out
        assert f"ftlib keys promote {path}" in out
        assert old not in out
        assert new not in out
        for step in ("promote", "drop"):
            assert run("keys", step, path) == 2
            assert f"ftlib keys rotate {path}" in capsys.readouterr().err
        path.chmod(0o644)
        assert run("keys", "rotate", path) == 2
        assert "chmod 600" in capsys.readouterr().err
        assert [each.name for each in own_place.iterdir()] == ["secret"]

    def test_a_file_that_is_not_there_is_not_made(self, own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A wrong name would make a secret that no member has."""
        path = own_place / "secrets"
        assert run("keys", "rotate", path) == 2
        assert f"{path} is not there" in capsys.readouterr().err
        assert not path.exists()

    def test_no_more_than_a_member_takes(self, own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = first_in(own_place / "secret")
        for _ in range(15):
            assert run("keys", "rotate", path) == 0
        before = secrets_in(path)
        assert run("keys", "rotate", path) == 2
        assert f"16 are the most: ftlib keys drop {path}" in capsys.readouterr().err
        assert secrets_in(path) == before == list(dict.fromkeys(before))
        KeyRing((), path)
        path.write_text("\n".join([*before, SECRET]))
        assert run("keys", "drop", path) == 0
        assert secrets_in(path) == before[:1]

    def test_who_could_read_the_file_still_can(self, own_place: Path) -> None:
        path = first_in(own_place / "secret")
        os.chown(path, -1, 1 if os.geteuid() == 0 else os.getegid())
        path.chmod(0o640)
        before = path.stat()
        assert run("keys", "rotate", path) == 0
        after = path.stat()
        assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
        assert after.st_ino != before.st_ino

    def test_a_link_leads_to_the_file_that_is_changed(self, own_place: Path) -> None:
        """All hosts read that one. In the place of the link, only this one would have the new secret."""
        (own_place / "shared").mkdir()
        path = first_in(own_place / "shared" / "secret")
        [old] = secrets_in(path)
        (own_place / "link").symlink_to(path)
        link = own_place / "link to a link"
        link.symlink_to("link")
        for step in ("rotate", "promote"):
            assert run("keys", step, link) == 0
        new, kept = secrets_in(path)
        assert kept == old != new
        assert run("keys", "drop", link) == 0
        assert secrets_in(path) == [new]
        assert link.is_symlink() and (own_place / "link").is_symlink()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["secret"]

    def test_the_token_of_metrics(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("keys", "token") == 2
        assert "FTLIB_SECRET" in capsys.readouterr().err
        monkeypatch.setenv("FTLIB_SECRET", SECRET)
        assert run("keys", "token") == 0
        assert capsys.readouterr().out.strip() == KeyRing([SECRET]).first.bearer("metrics")

    def test_the_token_of_a_run_with_a_drawn_secret(self, own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        credentials = Credentials("j", {})
        token = credentials.ring.first.bearer("metrics")
        with credentials.kept():
            assert run("keys", "token") == 0
            assert capsys.readouterr().out.strip() == token
            [mine] = drawn_files()
            lives_too = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-"))
            lives_too.touch(0o600)
            assert run("keys", "token") == 2
            assert str(mine) in (said := capsys.readouterr().err)
            assert str(lives_too) in said
            assert run("keys", "token", mine) == 0
            assert capsys.readouterr().out.strip() == token

    def test_help_tells_the_order(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("keys", "--help") == 0
        text = capsys.readouterr().out
        assert text.index("rotate FILE") < text.index("promote FILE") < text.index("drop FILE")


class TestCredentials:
    def test_the_users_secret_comes_first(self, own_place: Path) -> None:
        (own_place / "ftlib.toml").write_text(f'[ftlib]\nsecret = "{SECRET}"\n')
        credentials = Credentials("j", {})
        assert credentials.environment == {}
        assert credentials.ring.first.id == KeyRing([SECRET]).first.id
        with credentials.kept():
            assert not drawn_rings()
        ring = ring_of_user({"FTLIB_SECRET": "another secret, long enough"})
        assert ring is not None
        assert ring.first.id == KeyRing(["another secret, long enough"]).first.id

    async def test_a_file_that_hangs_keeps_no_launcher_from_its_work(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.touch(0o600)
        path.write_text(SECRET)
        credentials = Credentials("j", {"FTLIB_SECRET_FILE": str(path)})
        fences = Fences("j", ((), path), "127.0.0.1", *[Mock()] * 4)
        try:
            assert fences.ring.first.id == credentials.ring.first.id
            began = time.monotonic()
            with hanging_for(path):
                assert fences.ring.first.id == credentials.ring.first.id
                assert time.monotonic() - began < 30.0
        finally:
            fences._loop.remove_reader(fences._listener.fileno())
            fences._listener.close()

    def test_a_drawn_secret_is_kept_as_long_as_the_run(self, own_place: Path) -> None:
        credentials = Credentials("j", {})
        [secret] = credentials.environment.values()
        with credentials.kept():
            [ring] = drawn_rings()
            assert ring.first.id == KeyRing([secret]).first.id
            [path] = (own_place / "runtime" / "ftlib").iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert secret not in path.name
        assert not drawn_rings()
        assert secret not in repr(credentials)

    def test_what_a_killed_launcher_left_is_removed(self, own_place: Path) -> None:
        directory = own_place / "runtime" / "ftlib"
        directory.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with Credentials("j", {}).kept():
            [mine] = directory.iterdir()
            assert mine.name.startswith(f"j-{os.getpid()}-")
            place = mine.name.rpartition("-")[2]
        lost, elsewhere = directory / f"old-{child}-{place}", directory / f"old-{child}-{place[::-1]}x"
        for path in (lost, elsewhere):
            path.write_text(f"{SECRET}\n")
            path.chmod(0o600)
        assert not drawn_rings()
        with Credentials("j", {}).kept():
            assert sorted(directory.iterdir()) == [mine, elsewhere], "another host's launcher may live"
        lost.touch(0o600)
        remove_lost()
        assert list(directory.iterdir()) == [elsewhere]

    def test_a_user_without_a_home_has_no_files(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def unknown(_uid: int) -> pwd.struct_passwd:
            raise KeyError("no such user")

        for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", unknown)
        with Credentials("j", {}).kept():
            assert not drawn_files() and not drawn_rings()

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    @pytest.mark.parametrize("way", [["--pid", "--fork"], ["--uts", "sh", "-c", 'hostname elsewhere; "$0" "$@"']])
    def test_a_pid_elsewhere_is_told_from_one_here(self, way: list[str]) -> None:
        source = """
from ftlib.launch.processes.credentials import drawn_files
from ftlib.launch.processes.places import remove_lost
remove_lost()
print(len(drawn_files()))
"""
        with Credentials("j", {}).kept():
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            line = ["unshare", *way, sys.executable, "-c", source]
            asked = subprocess.run(line, env=env, capture_output=True, text=True, check=True, timeout=LIMIT)
            assert asked.stdout == "0\n"
            assert len(drawn_rings()) == 1, "what another place cannot judge it leaves alone"


@contextlib.contextmanager
def member(secret: str) -> Iterator[str]:
    gossip = Gossip(Config(secret=secret))
    gossip.start()
    try:
        yield format_address(gossip.member.address)
    finally:
        gossip.stop()


def test_status_shows_the_users_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    with member(SECRET) as address:
        with pytest.raises(FTLibError, match="FTLIB_SECRET"):
            fetch_status(address, TIMEOUT)
        monkeypatch.setenv("FTLIB_SECRET", "another secret, long enough")
        with pytest.raises(FTLibError, match="another secret: give the one of its job"):
            fetch_status(address, TIMEOUT)
        monkeypatch.setenv("FTLIB_SECRET", SECRET)
        assert fetch_status(address, TIMEOUT)["job"] == "default"
        monkeypatch.setenv("FTLIB_SECRET", "short")
        with pytest.raises(ConfigError, match="too short"):
            fetch_status(address, TIMEOUT)


def test_status_finds_a_drawn_secret() -> None:
    other, credentials = Credentials("other", {}), Credentials("j", {})
    with credentials.kept(), member(credentials.environment["FTLIB_SECRET"]) as address:
        assert fetch_status(address, TIMEOUT)["job"] == "default"
    with other.kept(), member(credentials.environment["FTLIB_SECRET"]) as address, pytest.raises(FTLibError):
        fetch_status(address, TIMEOUT)


@pytest.mark.process
def test_a_run_draws_a_secret_that_nobody_else_sees(own_place: Path) -> None:
    body = """
from pathlib import Path
write("seen", os.environ["FTLIB_SECRET"] + " " + os.environ["FTLIB_SUPERVISOR"])
wait("go")
"""
    with running(own_place, "-n", 1, script=script(body), FTLIB_SECRET="") as started:
        secret, _ = started.wait_file("seen").split()
        assert [ring.first.id for ring in drawn_rings()] == [KeyRing([secret]).first.id]
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert secret.encode() not in line.read_bytes()
        (own_place / "go").touch()
        out, err = started.finish(0)
    assert secret not in out + err + json.dumps(started.events())
    assert not drawn_rings()


def test_what_a_file_leaves_to_the_program_is_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[ftlib]\npolicy = "storage"\nconsensus = "shared_storage"\nsecret = "the secret of a file"\n')
    ring = ring_of_user({"FTLIB_CONFIG": str(file)})
    assert ring is not None
    file.write_text('[ftlib]\nstorage = "file:///shared"\n')
    assert ring_of_user({"FTLIB_CONFIG": str(file)}) is None
