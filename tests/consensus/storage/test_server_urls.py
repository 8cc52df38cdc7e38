"""URLs of Redis and etcd: what they must not say, and what of them nobody may see."""

from __future__ import annotations

import sys

import pytest

from consensus.errors import ConfigError
from consensus.storage.etcd.etcd_store import EtcdStore
from consensus.storage.redis.redis_store import RedisStore
from consensus.storage.server_url import parse_server_url
from tests.consensus.storage.passwords import QUOTED, SECRET


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://host", "begins with redis:// or rediss://"),
        ("redis://", "expected host:port"),
        ("redis://host:port", "expected host:port"),
        ("redis://a:1,b:2", "name one server"),
        ("redis://host/first", "the database is a number"),
        ("redis://host?ssl=true", "unknown setting 'ssl'"),
        ("redis://host?ca=/etc/passwd", "setting ca is for TLS"),
        ("rediss://host?ca=/no/such", "no such file"),
        ("rediss://host?key=/etc/passwd", "needs cert"),
        ("rediss://host?ca=/etc/passwd", "its TLS files cannot be used"),
        ("unix://host/path", "unix:///path"),
        (f"redis://user:{SECRET}@host", "%40"),
        (f"redis://:{SECRET}", "%40"),
        ("redis://user:pass%2Fword host", "expected host:port"),
    ],
)
def test_a_malformed_url_of_redis_is_refused_without_quoting_a_password(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        RedisStore(url, "job")
    assert "word" not in str(caught.value).replace("user name or password", "").replace("user:password@", "")
    assert "\n" not in str(caught.value)


def test_nobody_sees_the_password_for_redis() -> None:
    store = RedisStore(f"redis://user:{QUOTED}@host:1/3", "job")
    assert store.url == "redis://user@host:1/3"
    assert repr(store) == "RedisStore('redis://user@host:1/3')"
    assert "word" not in repr(vars(store))
    assert "word" not in repr(parse_server_url(f"redis://user:{QUOTED}@host", ("redis",), 1))


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("redis", "consensus.storage.redis.redis_wire"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("consensus.storage.redis.redis_wire", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install ftlib\[redis\]"):
        RedisStore("redis://host", "job")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://host", "begins with etcd:// or etcds://"),
        ("etcd://", "expected host:port"),
        ("etcd://a:1,,b:2", "expected host:port"),
        ("etcd://host/path", "expected nothing after the servers"),
        ("etcd://user@host", "etcd needs both"),
        ("etcd://host?db=1", "unknown setting 'db'"),
        ("etcd://host?ca=/etc/passwd", "setting ca is for TLS"),
        ("etcds://host?ca=/etc/passwd", "its TLS files cannot be used"),
        (f"etcd://user:{SECRET}@host", "%40"),
    ],
)
def test_a_malformed_url_of_etcd_is_refused_without_quoting_a_password(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        EtcdStore(url, "job")
    assert "word" not in str(caught.value).replace("user name or password", "").replace("user:password@", "")
    assert "\n" not in str(caught.value)


def test_nobody_sees_the_password_for_etcd() -> None:
    store = EtcdStore(f"etcd://user:{QUOTED}@a:1,b,[::1]:3", "job")
    assert store.url == "etcd://user@a:1,b:2379,[::1]:3"
    assert repr(store) == "EtcdStore('etcd://user@a:1,b:2379,[::1]:3')"
    assert "word" not in repr(vars(store))
