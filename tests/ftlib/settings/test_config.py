from __future__ import annotations

import inspect
import math
import os
from pathlib import Path
from typing import Any

import pytest

from consensus import Gossip, Liveness, Mode, Policy, SharedStorage
from ftlib import ConfigError, FTLib
from ftlib.frameworks.gloo import GlooFramework
from ftlib.settings.config import resolve


def test_the_argument_wins_over_variable_file_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.toml"
    file.write_text('[ftlib]\nexclude_after = "500 ms"\nmin_size = 2\nmode = "passive"\njob = "file"\n')
    variables = {"FTLIB_CONFIG": str(file), "FTLIB_MIN_SIZE": "3", "FTLIB_JOB": "variable", "FTLIB_NAME": "worker 1"}
    found = resolve({"job": "argument"}, None, variables)
    assert (found.consensus.job, found.min_size, found.consensus.exclude_after) == ("argument", 3, 0.5)
    assert (found.consensus.mode, found.step_timeout, found.name) == (Mode.PASSIVE, 600.0, "worker 1")
    assert resolve({}, file, {}).consensus.job == "file"
    assert resolve({}, {"min_size": 4}, {}).min_size == 4
    assert resolve({}, {"ftlib": {"min_size": 4}}, {}).min_size == 4
    monkeypatch.chdir(tmp_path)
    assert resolve({}, None, {}).min_size == 1
    (tmp_path / "ftlib.toml").write_text("[ftlib]\nmin_size = 5\n")
    assert resolve({}, None, {}).min_size == 5


def test_values_are_read_from_text() -> None:
    variables = {
        "FTLIB_INTRODUCERS": "127.0.0.1:7000, [::1]:7001,",
        "FTLIB_SOCKET_FDS": "5,6",
        "FTLIB_QUORUM_TIMEOUT": "10 min",
        "FTLIB_MAX_SIZE": "",
        "FTLIB_POLICY": "majority",
        "FTLIB_BUCKET_MB": "1.5",
        "FTLIB_SECRET": "# ftlib: the first secret seals\nsixteen bytes or more\n",
        "FTLIB_SOMEBODY_ELSES": "1",
    }
    found = resolve({}, {}, variables)
    assert found.consensus.introducers == ("127.0.0.1:7000", "[::1]:7001")
    assert found.consensus.socket_fds == (5, 6)
    assert (found.consensus.quorum_timeout, found.consensus.max_size, found.consensus.policy) == (600.0, None, Policy.MAJORITY)
    assert found.bucket_mb == 1.5
    assert found.consensus.secrets == ("sixteen bytes or more",)


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0s", "0 ms", "0.0"])
@pytest.mark.parametrize("name", ["handover", "drain_patience"])
def test_what_may_be_zero_may_be_so_in_any_unit(name: str, nothing: object) -> None:
    assert getattr(resolve({name: nothing}, {}, {}), name) == 0
    for wrong in (-1, False, math.nan, "-0s"):
        with pytest.raises(ConfigError, match=f"{name}.*expected"):
            resolve({name: wrong}, {}, {})


@pytest.mark.parametrize("nothing", [0, 0.0, "0", "0 s"])
def test_members_that_do_not_reach_each_other_may_stay(nothing: object) -> None:
    assert resolve({"link_timeout": nothing}, {}, {}).consensus.link_timeout == 0
    with pytest.raises(ConfigError, match="positive"):
        resolve({"exclude_after": nothing}, {}, {})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"exclude_afer": 2}, "unknown setting exclude_afer in the arguments: did you mean exclude_after"),
        ({"zzz": 2}, "known settings: "),
        ({"min_size": 0}, "min_size in the arguments=0: expected at least 1"),
        ({"min_size": 3, "max_size": 2}, "max_size=2 is below"),
        ({"step_timeout": "soon"}, "expected seconds"),
        ({"step_timeout": -1}, "positive"),
        ({"step_timeout": 1e10}, "step_timeout in the arguments=.*: expected at most 1728000 seconds"),
        ({"join_timeout": "10000000 h"}, "join_timeout .* at most"),
        ({"handover": 1e10}, "handover .* at most"),
        ({"exclude_after": 10**400}, "exclude_after in the arguments="),
        ({"bucket_mb": 10**400}, "bucket_mb in the arguments="),
        ({"mode": "lazy"}, "choose one of active, passive"),
        ({"policy": "storage"}, "policy=storage needs a store that all members reach"),
        ({"introducers": ["here"]}, "'here' is not an address"),
        ({"introducers": 5}, "list of host:port"),
        ({"bind": "127.0.0.1:99999"}, "bind: "),
        ({"exclude_after": 0.001}, "exclude_after"),
        ({"secret": "# the first secret seals"}, "only comments in it"),
        ({"secret": "x"}, "1 bytes is too short.*ftlib keys new"),
        ({"job": ""}, "job="),
    ],
)
def test_what_cannot_work_is_named(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve(arguments, {}, {})


@pytest.mark.parametrize("name", ["secret", "storage", "storage_password"])
def test_what_is_secret_is_not_shown_where_it_is_wrong(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        resolve({}, {name: 271828182845}, {})
    assert "271828182845" not in str(caught.value)


def test_what_could_not_be_sent_to_the_others_is_refused() -> None:
    """Bytes of a variable that are not UTF-8; in a label, which nothing depends on, they are left out."""
    word = os.fsdecode(b"caf\xe9")
    for name in ("job", "replica"):
        with pytest.raises(ConfigError, match=rf"(?i){name}='caf\\udce9'.* is no Unicode"):
            resolve({}, {}, {f"FTLIB_{name.upper()}": word})
    assert resolve({}, {}, {"FTLIB_NAME": word}).name == "caf?"


def test_misspelt_variables_and_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FTLIB_MIN_SIZES: did you mean min_size"):
        resolve({}, {}, {"FTLIB_MIN_SIZES": "2"})
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, tmp_path / "none.toml", {})
    for nothing in (5, b"job.toml", ["job.toml"], "a\0b"):
        with pytest.raises(ConfigError, match=r"^config="):
            resolve({}, nothing, {})  # type: ignore[arg-type]
    (tmp_path / "bad.toml").write_text("[ftlib\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve({}, tmp_path / "bad.toml", {})


@pytest.mark.parametrize("text", ['job = "mine"\nmin_size = 4\n', '[ftlb]\njob = "mine"\n', "[tool.ftlib]\nmin_size = 4\n"])
def test_a_file_whose_settings_nobody_would_read_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was named, or is just there."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ftlib.toml"
    file.write_text(text)
    for config, variables in ((file, {}), (None, {"FTLIB_CONFIG": str(file)}), (None, {})):
        with pytest.raises(ConfigError, match=r"ftlib\.toml has no table \[ftlib\].* but (job, min_size|ftlb|tool): add"):
            resolve({}, config, variables)
    for nothing in ("", "# none yet\n", "[ftlib]\n"):
        file.write_text(nothing)
        assert resolve({}, file, {}).min_size == resolve({}, None, {}).min_size == 1
    file.write_text(f"{text}[ftlib]\nmin_size = 3\n")
    assert resolve({}, file, {}).min_size == 3, "the rest of the file is the program's"


def test_unknown_backends_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown consensus 'raft': choose gossip or shared_storage"):
        FTLib.init("raft", "memory")


@pytest.mark.parametrize(
    ("framework", "pattern"),
    [
        ("isolated:memory", "^framework='isolated:memory': what can .* is gloo, nccl: give framework='isolated:gloo'"),
        ("Gloo", "^unknown framework 'Gloo': did you mean 'gloo'"),
        ("isolated-gloo", "^unknown framework 'isolated-gloo': did you mean 'isolated:gloo'"),
        (
            "mpi",
            r"^unknown framework 'mpi': give one of gloo, isolated:gloo, isolated:nccl, nccl \(for tests: isolated:",
        ),
        (GlooFramework, r"neither a name nor a Framework: pass GlooFramework\(\), not the class; names are gloo"),
        (None, "^framework=None is neither a name nor a Framework; names are gloo"),
    ],
)
def test_what_is_no_framework_is_told_what_to_give(framework: Any, pattern: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        FTLib.init("gossip", framework)


def test_a_policy_comes_from_anywhere() -> None:
    with pytest.raises(ConfigError, match="choose one of majority, storage, any"):
        resolve({"policy": "most"})
    assert resolve({}, None, {"FTLIB_POLICY": "any"}).consensus.policy is Policy.ANY


def test_a_time_is_at_most_what_everything_can_wait() -> None:
    assert resolve({"step_timeout": "480 h"}, None, {}).step_timeout == 20 * 86400
    for given in ("481 h", 1e10):
        with pytest.raises(ConfigError, match=r"step_timeout.*at most 1728000 seconds, which are 20 days"):
            resolve({"step_timeout": given}, None, {})


def test_the_command_that_fences_comes_from_anywhere_and_its_environment_is_no_setting(tmp_path: Path) -> None:
    file = tmp_path / "ftlib.toml"
    file.write_text('[ftlib]\nfence_command = "kill-worker --now"\nfence_timeout = "500 ms"\n')
    found = resolve({}, file, {"FTLIB_FENCE_NAME": "worker 3", "FTLIB_FENCE_ID": "abc"})
    assert (found.consensus.fence_command, found.consensus.fence_timeout) == ("kill-worker --now", 0.5)
    assert resolve({}, None, {"FTLIB_FENCE_COMMAND": "true"}).consensus.fence_command == "true"
    with pytest.raises(ConfigError, match="is no command line"):
        resolve({"fence_command": "kill 'em"})


def test_shared_storage_has_defaults_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    found = resolve({}, {}, {}, backend=SharedStorage).consensus
    assert (found.policy, found.liveness, found.mode) == (Policy.STORAGE, Liveness.LEASES, Mode.PASSIVE)
    assert found.storage == f"file://{tmp_path}/a%20cache/ftlib"
    assert (tmp_path / "a cache" / "ftlib").is_dir()
    given = {"storage": "file:///shared", "lease": "500 ms", "mode": "active"}
    found = resolve(given, {}, {"FTLIB_STORAGE": "redis://elsewhere"}, backend=SharedStorage).consensus
    assert (found.storage, found.lease, found.exclude_after, found.mode) == ("file:///shared", 0.5, 0.5, Mode.ACTIVE)
    monkeypatch.setenv("XDG_CACHE_HOME", "not absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve({}, {}, {}, backend=SharedStorage).consensus.storage == f"file://{tmp_path}/.cache/ftlib"


def test_gossip_is_as_ever() -> None:
    found = resolve({}, {}, {"FTLIB_STORAGE": "file:///shared"}).consensus
    assert (found.policy, found.liveness, found.mode) == (Policy.MAJORITY, Liveness.PINGS, Mode.ACTIVE)
    found = resolve({"policy": "storage"}, {}, {"FTLIB_STORAGE": "file:///shared"}).consensus
    assert (found.policy, found.liveness, found.storage) == (Policy.STORAGE, Liveness.PINGS, "file:///shared")


@pytest.mark.parametrize("policy", ["majority", "any"])
def test_with_shared_storage_the_store_decides(policy: str) -> None:
    with pytest.raises(ConfigError, match=f"policy={policy} goes with consensus='gossip'"):
        resolve({"policy": policy}, {}, {}, backend=SharedStorage)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file://shared/dir", "file:///shared/directory, with three slashes"),
        ("file://~/shared", "file:///shared/directory, with three slashes"),
        ("~/shared", "is no URL: give file:///shared/directory"),
        ("/shared/dir", "write file:///shared/dir"),
        ("ftp://host/dir", "no store is known by ftp://"),
    ],
)
def test_what_names_no_store_is_said_before_anything_starts(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FTLib.init("shared_storage", "memory", storage=url)
    with pytest.raises(ConfigError, match=text):
        FTLib.init("gossip", "memory", policy="storage", storage=url)


def test_a_password_in_a_url_is_in_no_text() -> None:
    assert "hush" not in repr(resolve({"storage": "redis://:hush@host"}, {}, {}, backend=SharedStorage))
    with pytest.raises(ConfigError) as raised:
        resolve({"storage": b"redis://:hush@host"}, {}, {}, backend=SharedStorage)
    assert "hush" not in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        FTLib.init("shared_storage", "memory", storage="redi://:hush@host")
    assert "hush" not in str(raised.value)


def test_the_backend_is_a_setting_too(tmp_path: Path) -> None:
    named = {"FTLIB_CONSENSUS": "shared_storage", "FTLIB_STORAGE": f"file://{tmp_path}"}
    assert resolve({}, {}, named).backend is SharedStorage
    assert resolve({}, {"consensus": "shared_storage"}, {}).consensus.policy is Policy.STORAGE
    assert resolve({}, {}, {}).backend is Gossip
    terms = [
        resolve({}, {}, {**named, **more}).consensus.terms
        for more in ({}, {"FTLIB_CONSENSUS": "gossip", "FTLIB_POLICY": "storage"})
    ]
    assert terms[0].startswith("lease=2 policy=storage") and terms[1].startswith("exclude_after=2 policy=storage"), (
        "refused at join"
    )
    assert resolve({}, {}, named, backend=Gossip).backend is Gossip, "what the program says counts more"
    with pytest.raises(ConfigError, match="FTLIB_CONSENSUS='raft': choose one of gossip, shared_storage"):
        resolve({}, {}, {"FTLIB_CONSENSUS": "raft"})


def test_a_store_that_nothing_would_use_is_an_error() -> None:
    with pytest.raises(ConfigError, match="storage is given, but consensus=gossip with policy=majority does not use it"):
        FTLib.init(framework="memory", storage="file:///shared")


def test_who_we_are_to_a_store_can_be_said_apart_from_its_url() -> None:
    environment = {"FTLIB_STORAGE_PASSWORD": "do not tell", "FTLIB_STORAGE_USERNAME": "ftlib"}
    settings = resolve({"storage": "redis://host", "policy": "storage"}, {}, environment).consensus
    assert settings.storage_options == {"username": "ftlib", "password": "do not tell"}
    assert "do not tell" not in repr(settings)


def test_the_default_backend_is_gossip_by_name() -> None:
    """Programs outside rely on the signature as it is documented."""
    assert inspect.signature(FTLib.init).parameters["consensus"].default == "gossip"
