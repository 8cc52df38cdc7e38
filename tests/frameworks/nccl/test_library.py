"""The layer of ctypes: numbers and structures as in nccl.h, arguments in NCCL's order, errors in NCCL's words."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from consensus import interface_name
from ftlib.errors import GroupError
from ftlib.frameworks.accelerators.nccl import library as module
from ftlib.frameworks.accelerators.nccl import native_reconfigure
from ftlib.frameworks.accelerators.nccl.library import Library, Unavailable, load, version_text
from ftlib.frameworks.accelerators.nccl.results import Result
from ftlib.frameworks.accelerators.nccl.structures import REDUCTIONS, TYPES, Config, UniqueId, config
from tests.frameworks.nccl.fake import PROTOTYPES, Functions
from tests.frameworks.nccl.scripted import HANDLE, STREAM, Scripted

INT, POINTER = ctypes.c_int, ctypes.c_void_p
OLD = [
    ("size", ctypes.c_size_t),
    ("magic", ctypes.c_uint),
    ("version", ctypes.c_uint),
    *((name, INT) for name in ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs")),
    ("netName", POINTER),
    ("splitShare", INT),
]
"""``ncclConfig_t`` up to 2.18."""
SINCE = [("trafficClass", INT), ("commName", POINTER)] + [
    (name, INT)
    for name in ("collnetEnable", "CTAPolicy", "shrinkShare", "nvlsCTAs", "nChannelsPerNetPeer", "nvlinkCentricSched")
]
"""What 2.28 has more."""
NEWEST = [(name, INT) for name in ("graphUsageMode", "numRmaCtx", "maxP2pPeers", "graphStreamOrdering")]
"""What 2.30 has more than that."""


def nccl() -> tuple[Scripted, Library]:
    scripted = Scripted()
    return scripted, scripted.library()


# --- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "size"), [(OLD, 48), (OLD + SINCE, 80), (OLD + SINCE + NEWEST, 96)], ids=["2.18", "2.28", "2.30"]
)
def test_the_configuration_begins_as_that_of_nccl(fields: list[tuple[str, type]], size: int) -> None:
    """Sizes and offsets as a compiler of C says for the headers of 2.28.9 and 2.30.7."""
    theirs = type("theirs", (ctypes.Structure,), {"_fields_": fields})
    assert ctypes.sizeof(theirs) == size
    for name, _ in OLD:
        ours, other = getattr(Config, name), getattr(theirs, name)
        assert (ours.offset, ours.size) == (other.offset, other.size), name
    assert ctypes.sizeof(Config) == 48
    assert ctypes.sizeof(UniqueId) == 128


def test_the_configuration_is_read_as_nccl_reads_it() -> None:
    """It copies as many bytes as the first field says over its defaults, and then takes the version's word for the rest."""
    theirs = type("theirs", (ctypes.Structure,), {"_fields_": OLD + SINCE + NEWEST})
    defaults = theirs()
    defaults.commName, defaults.collnetEnable = None, -(1 << 31)
    given = bytes(config())
    ctypes.memmove(ctypes.byref(defaults), given, len(given))
    assert (defaults.size, defaults.magic, defaults.version) == (48, 0xCAFEBEEF, 21800)
    assert defaults.blocking == 0
    undefined = -(1 << 31)
    assert [defaults.cgaClusterSize, defaults.minCTAs, defaults.maxCTAs, defaults.splitShare] == [undefined] * 4
    assert defaults.netName is None
    assert defaults.collnetEnable == undefined, "untouched"


def test_enumerations_are_those_of_nccl() -> None:
    assert [Result(code).name for code in range(9)] == [
        "SUCCESS",
        "UNHANDLED_CUDA_ERROR",
        "SYSTEM_ERROR",
        "INTERNAL_ERROR",
        "INVALID_ARGUMENT",
        "INVALID_USAGE",
        "REMOTE_ERROR",
        "IN_PROGRESS",
        "TIMEOUT",
    ]
    assert Result.of(99) is Result.UNKNOWN
    assert [Result.of(code).bad for code in (0, 7, 6, 99)] == [False, False, True, True]
    assert REDUCTIONS == {"SUM": 0, "PRODUCT": 1, "MAX": 2, "MIN": 3}
    names = {str(dtype).removeprefix("torch."): code for dtype, code in TYPES.items()}
    floats = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
    assert names == {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, **floats}


# --- functions ---------------------------------------------------------------------------------------------------------


def test_arguments_come_in_order() -> None:
    scripted, library = nccl()
    identity = library.unique_id()
    assert library.init_rank(identity, 4, 3) == (HANDLE, Result.SUCCESS)
    library.group_start()
    library.all_reduce(0x7F00DEADBEE0, 5_000_000_000, 9, 2, HANDLE, STREAM)
    library.broadcast(0x7F00DEADBEE0, 17, 1, 3, HANDLE, STREAM)
    library.group_end()
    library.revoke(HANDLE)
    library.abort(HANDLE)
    assert scripted.log == [
        ("ncclGetUniqueId",),
        ("ncclCommInitRankConfig", 4, bytes(range(128)), 3),
        ("ncclGroupStart",),
        ("ncclAllReduce", 0x7F00DEADBEE0, 0x7F00DEADBEE0, 5_000_000_000, 9, 2, HANDLE, STREAM),
        ("ncclBroadcast", 0x7F00DEADBEE0, 0x7F00DEADBEE0, 17, 1, 3, HANDLE, STREAM),
        ("ncclGroupEnd",),
        ("ncclCommRevoke", HANDLE, 0),
        ("ncclCommAbort", HANDLE),
    ]
    assert scripted.configs == [bytes(config())]


CALLS = {
    "ncclGetUniqueId": lambda library: library.unique_id(),
    "ncclCommInitRankConfig": lambda library: library.init_rank(bytes(128), 2, 0),
    "ncclCommGetAsyncError": lambda library: library.async_error(HANDLE),
    "ncclAllReduce": lambda library: library.all_reduce(16, 1, 7, 0, HANDLE, STREAM),
    "ncclBroadcast": lambda library: library.broadcast(16, 1, 7, 0, HANDLE, STREAM),
    "ncclGroupStart": lambda library: library.group_start(),
    "ncclGroupEnd": lambda library: library.group_end(),
    "ncclCommAbort": lambda library: library.abort(HANDLE),
}


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 8, 99])
@pytest.mark.parametrize("function", [*CALLS, "ncclGetVersion"])
def test_every_error_of_every_function_is_told(function: str, code: int) -> None:
    scripted = Scripted()
    library = scripted.library()
    scripted.codes[function] = code
    words = "unknown result code" if code == 99 else scripted._texts[code].value.decode()
    with pytest.raises(GroupError) as told:
        CALLS[function](library) if function in CALLS else scripted.library()
    assert str(told.value) == f"{function}: {words} (what NCCL said last, in two lines)"


@pytest.mark.parametrize("code", range(10))
def test_a_revoke_and_a_question_give_every_answer_as_it_is(code: int) -> None:
    scripted, library = nccl()
    scripted.codes["ncclCommRevoke"], scripted.state = code, code
    assert library.revoke(HANDLE) is library.async_error(HANDLE) is Result.of(code)


def test_what_is_in_progress_is_no_error() -> None:
    scripted, library = nccl()
    for function, call in CALLS.items():
        scripted.codes[function] = Result.IN_PROGRESS
        if function == "ncclCommAbort":  # nobody may ask any more how it goes on
            with pytest.raises(GroupError, match="operation in progress"):
                call(library)
        else:
            call(library)


def test_no_handle_is_an_error() -> None:
    scripted, library = nccl()
    scripted.handle = 0
    with pytest.raises(GroupError, match="no communicator"):
        library.init_rank(bytes(128), 2, 0)


# --- which library -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "works"), [(22807, True), (23007, True), (22806, False), (22703, False), (2804, False)])
def test_an_old_one_is_refused(version: int, works: bool) -> None:
    scripted = Scripted()
    scripted.version = version
    if works:
        assert scripted.library().version == version
    else:
        with pytest.raises(Unavailable, match=r"2\.28\.7 or newer is needed.*torch 2\.11"):
            scripted.library()


def test_versions_are_told_as_people_write_them() -> None:
    assert [version_text(code) for code in (22809, 22807, 23007, 21005)] == ["2.28.9", "2.28.7", "2.30.7", "2.10.5"]


@pytest.mark.parametrize("missing", list(PROTOTYPES))
def test_another_library_is_refused(missing: str) -> None:
    functions = Functions(Scripted())
    delattr(functions, missing)
    with pytest.raises(Unavailable, match=f"no function {missing}: it is not NVIDIA's"):
        Library(functions)


def test_it_is_found_beside_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text names every place that was tried."""
    (tmp_path / "lib").mkdir()
    there = tmp_path / "lib" / "libnccl.so.2"
    there.write_bytes(b"nothing that a loader knows")
    monkeypatch.setattr(module, "_NAME", "libnccl-of-no-machine.so.2")
    with pytest.raises(Unavailable, match=r"there is no libnccl-of-no-machine\.so\.2: libnccl-of-no-machine"):
        load()
    monkeypatch.setattr(module, "_NAME", "libnccl.so.2")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert str(there) in module._places()
    monkeypatch.setattr(module.ctypes, "CDLL", _cannot_load)
    with pytest.raises(Unavailable, match=f"libnccl.so.2 cannot be loaded; {there} cannot be loaded"):
        load()


def _cannot_load(name: str) -> None:
    raise OSError(f"{name} cannot be loaded")


def test_an_interface_is_found_by_its_address() -> None:
    names = {Path(path).name for path in Path("/sys/class/net").iterdir()}
    assert interface_name("127.0.0.1") == interface_name("127.0.0.2") == "lo"
    assert "lo" in names
    assert interface_name("0.0.0.0") == interface_name("203.0.113.7") == interface_name("no address") == ""


def test_torchs_own_reconfigure_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups:
        reconfigure = None

    monkeypatch.setattr(module.distributed, "ProcessGroup", Groups)
    assert native_reconfigure()
    monkeypatch.setattr(module.distributed, "ProcessGroup", object)
    assert not native_reconfigure()
