"""``SharedStorage`` and what it has in common with ``Gossip``: settings, and a password that nobody sees."""

from __future__ import annotations

import logging
import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consensus import Config, ConfigError, Gossip, Home, JoinError, Liveness, Membership, Mode, Policy, SharedStorage
from consensus.runtime.host.process_host import ProcessHost
from consensus.runtime.net.sockets import open_pair
from tests.harness.basics import TIMEOUT, eventually, free_ports

PASSWORD = "what-nobody-may-see"


def test_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = SharedStorage().config
    assert (config.policy, config.liveness, config.storage) == (Policy.STORAGE, Liveness.LEASES, f"file://{tmp_path}/ftlib")
    assert SharedStorage().passive_or_active() is Mode.PASSIVE
    assert SharedStorage(Config(mode=Mode.ACTIVE)).passive_or_active() is Mode.ACTIVE
    assert SharedStorage(Config(lease=0.5)).config.exclude_after == 0.5
    assert Gossip().passive_or_active() is Mode.ACTIVE
    assert Gossip(Config(mode=Mode.PASSIVE)).passive_or_active() is Mode.PASSIVE


def test_what_does_not_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="policy=any goes with gossip"):
        SharedStorage(Config(policy=Policy.ANY))
    leases = Config(policy=Policy.STORAGE, liveness=Liveness.LEASES, storage="file:///shared")
    with pytest.raises(ConfigError, match="for leases in a store take shared_storage"):
        Gossip(leases)
    assert SharedStorage(leases).config == replace(leases, mode=Mode.PASSIVE)


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ftlib").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"storage: {tmp_path}/ftlib cannot be made .*name a store"):
        SharedStorage()


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> pwd.struct_passwd:
        raise KeyError("no such user")

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=r"storage: this user has no home directory .*name a store"):
        SharedStorage()


def test_a_cache_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of bytes that are not UTF-8."""
    cache = tmp_path / os.fsdecode(b"caf\xe9 %20#?")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    member = SharedStorage(Config(agent=Home.THREAD))
    member.start()
    try:
        assert member.wait_view(TIMEOUT) is not None
        assert [path.name for path in cache.iterdir()] == ["ftlib"] and any((cache / "ftlib").iterdir())
    finally:
        member.stop()


def test_the_next_lifetime_is_of_the_same_kind(tmp_path: Path) -> None:
    member = SharedStorage(Config(storage=f"file://{tmp_path}", agent=Home.THREAD))
    member.start()
    try:
        again = member.anew()
        assert type(again) is SharedStorage and again.config.storage == f"file://{tmp_path}"
    finally:
        member.stop()


def test_the_next_lifetime_takes_another_port_where_a_launchers_choice_is_taken(tmp_path: Path) -> None:
    """A connection of anybody's may have it by then; a port that the user has named stays."""
    given = open_pair(Config())
    fds = (os.dup(given.udp.fileno()), os.dup(given.tcp.fileno()))
    place = f"127.0.0.1:{given.tcp.getsockname()[1]}"
    member = SharedStorage(Config(storage=f"file://{tmp_path}", agent=Home.THREAD, bind=place, socket_fds=fds))
    member.start()
    member.stop()
    again = member.anew()  # the other pair still has the port
    try:
        again.start()
        assert again.member.host == "127.0.0.1" and again.member.port != given.tcp.getsockname()[1]
        with pytest.raises(ConfigError, match="the port is in use"):
            SharedStorage(Config(storage=f"file://{tmp_path}", agent=Home.THREAD, bind=place)).bind()
    finally:
        again.stop()
        given.close()


@pytest.mark.parametrize("home", [Home.THREAD, pytest.param(Home.PROCESS, marks=pytest.mark.process)])
@pytest.mark.parametrize("kind", [Gossip, SharedStorage])
def test_a_store_that_will_not_do_is_said_at_once(tmp_path: Path, home: Home, kind: type[Membership]) -> None:
    member = kind(Config(policy=Policy.STORAGE, storage=f"file://{tmp_path}/nothing", agent=home))
    member.start()
    try:
        assert member.wait_view(TIMEOUT) is None
        assert isinstance(member.stopped, JoinError)
        assert "there is no such directory: make it on the shared file system, or mount that" in str(member.stopped)
    finally:
        member.stop()


@pytest.mark.process
@pytest.mark.parametrize("policy", ["gossip", "shared_storage"])
def test_a_password_in_the_url_is_seen_by_nobody(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = Config(policy=Policy.STORAGE, storage=f"redis://me:{PASSWORD}@127.0.0.1:{free_ports(1)[0]}/0", join_timeout=2.0)
    member = (Gossip if policy == "gossip" else SharedStorage)(config)

    def store() -> dict[str, Any]:
        """What it says of its store; nothing before its agent has."""
        found: dict[str, Any] = member.status().get("store", {})
        return found

    member.start()
    try:
        eventually(lambda: store().get("failures"), "the store is away")
        host = member._host
        assert isinstance(host, ProcessHost)
        for pid in (os.getpid(), host.pid):
            assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert PASSWORD.encode() not in Path(f"/proc/{host.pid}/environ").read_bytes()
        assert store()["url"].startswith("redis://")
        status = member.status()
        eventually(lambda: member.stopped, "it gives up")
        for text in (str(status), str(member.status()), str(member.stopped), repr(member.config), caplog.text):
            assert PASSWORD not in text
    finally:
        member.stop()
