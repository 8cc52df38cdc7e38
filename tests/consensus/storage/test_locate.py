"""From the setting ``storage`` to a store, and what is shown of it."""

from __future__ import annotations

import sys

import pytest

from consensus.errors import ConfigError
from consensus.storage.files.file_store import FileStore
from consensus.storage.locate import store_at
from consensus.storage.store import redacted


def test_a_directory() -> None:
    store = store_at("file:///srv/a%20b%3F", "job", timeout=1.0)
    assert isinstance(store, FileStore)
    assert str(store._folder._directory) == "/srv/a b?"
    assert store.url == "file:///srv/a%20b%3F"
    assert isinstance(store_at("FILE:///srv", "job"), FileStore)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", r"='' is no URL: give file:///shared/directory, redis://host:6379 or etcd://host:2379$"),
        ("/srv/ftlib", r"is no URL: .*; for a directory write file:///srv/ftlib$"),
        ("srv", "is no URL"),
        ("s3://bucket", "no store is known by s3://: give file:///"),
        ("file://srv/ftlib", "names no directory: give file:///shared/directory, with three slashes"),
        ("file://", "names no directory"),
        ("file:///a\0b", "names no directory"),
        ("file:///srv?timeout=3", "takes no settings"),
        ("file:///srv#1", "takes no settings"),
        ("user:word@host:1", r"='\*\*\*' is no URL"),
        ("file://user:word@srv/a", "names no directory"),
        ("ftp://user:word@host", "no store is known"),
    ],
)
def test_what_is_malformed_is_named_with_the_remedy(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^storage.*{text}") as caught:
        store_at(url, "job")
    assert "word" not in str(caught.value)


def test_a_timeout_must_leave_time() -> None:
    with pytest.raises(ConfigError, match="a timeout of 0 s leaves no time"):
        store_at("file:///srv", "job", timeout=0)


def test_without_its_package_redis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for url in ("redis://h", "rediss://h", "unix:///run/redis.sock"):
        with pytest.raises(ConfigError, match=r"pip install ftlib\[redis\]"):
            store_at(url, "job")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:///srv/a", "file:///srv/a"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:word@host:6379/0", "redis://***@host:6379/0"),
        ("redis://:word@host", "redis://***@host"),
        ("redis://word@host", "redis://***@host"),
        ("redis://u:wo@rd/w@host", "redis://***@host"),
        ("redis://u:wo#rd@host", "redis://***@host"),
        ("redis://u:wo?rd@host", "redis://***"),
        ("redis://host?password=word", "redis://host"),
        ("redis://host?password=wo@rd", "redis://***"),
        ("etcd://u:word@a:2379,b:2379/x?ca=/c", "etcd://***@a:2379,b:2379/x"),
        ("u:word@host", "***"),
        ("/srv", "/srv"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown
    assert redacted(redacted(url)) == shown
    assert "word" not in shown and "rd" not in shown


def test_a_directory_has_no_password() -> None:
    with pytest.raises(ConfigError, match="storage_password is for redis:// and etcd://"):
        store_at("file:///somewhere", "job", password="useless")
