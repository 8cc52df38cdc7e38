from __future__ import annotations

from pathlib import Path

import pytest

from consensus import Mode, Policy
from ftlib import ConfigError, FTLib
from ftlib.config import resolve


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"exclude_afer": 2}, "unknown setting exclude_afer in the arguments: did you mean exclude_after"),
        ({"zzz": 2}, "known settings: "),
        ({"min_size": 0}, "min_size in the arguments=0: expected at least 1"),
        ({"min_size": 3, "max_size": 2}, "max_size=2 is below"),
        ({"step_timeout": "soon"}, "expected seconds"),
        ({"step_timeout": -1}, "positive"),
        ({"mode": "lazy"}, "choose one of active, passive"),
        ({"policy": "storage"}, "not part of this release"),
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


def test_misspelt_variables_and_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FTLIB_MIN_SIZES: did you mean min_size"):
        resolve({}, {}, {"FTLIB_MIN_SIZES": "2"})
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve({}, tmp_path / "none.toml", {})
    (tmp_path / "bad.toml").write_text("[ftlib\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        resolve({}, tmp_path / "bad.toml", {})


def test_unknown_backends_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown consensus 'raft': choose gossip"):
        FTLib.init("raft", "memory")
    with pytest.raises(ConfigError, match="shared_storage"):
        FTLib.init("shared_storage", "memory")
    with pytest.raises(ConfigError, match="unknown framework 'mpi': choose one of gloo"):
        FTLib.init("gossip", "mpi")


def test_a_policy_of_a_later_release_is_refused_rather_than_taken_for_another() -> None:
    with pytest.raises(ConfigError, match=r"policy.*not part of this release"):
        resolve({"policy": "storage"})
    with pytest.raises(ConfigError, match="choose one of majority, storage, any"):
        resolve({"policy": "most"})
    assert resolve({}, None, {"FTLIB_POLICY": "any"}).consensus.policy is Policy.ANY


def test_the_command_that_fences_comes_from_anywhere_and_its_environment_is_no_setting(tmp_path: Path) -> None:
    file = tmp_path / "ftlib.toml"
    file.write_text('[ftlib]\nfence_command = "kill-worker --now"\nfence_timeout = "500 ms"\n')
    found = resolve({}, file, {"FTLIB_FENCE_NAME": "worker 3", "FTLIB_FENCE_ID": "abc"})
    assert (found.consensus.fence_command, found.consensus.fence_timeout) == ("kill-worker --now", 0.5)
    assert resolve({}, None, {"FTLIB_FENCE_COMMAND": "true"}).consensus.fence_command == "true"
    with pytest.raises(ConfigError, match="is no command line"):
        resolve({"fence_command": "kill 'em"})
