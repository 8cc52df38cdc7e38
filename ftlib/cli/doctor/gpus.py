"""What keeps members from using NCCL together: rules over the facts of one host, and of two.

Such a thing fails nothing, as everything then goes by Gloo: it is a note, with a remedy, unless the caller gives it another
grade (``bad``).
"""

from __future__ import annotations

from collections.abc import Mapping

from consensus import interface_name, parse_address
from consensus.tools.diagnosis import Examination, Grade

from .host import HostFacts

OLDEST_NCCL = (2, 28, 7)
"""The first version that can stop a communicator without freeing it (``ncclCommRevoke``)."""
_TOGETHER = ("nccl", "torch", "cuda", "driver")
"""Versions that are compared between two hosts; only the first keeps NCCL from being used."""


def examined(facts: HostFacts, environment: Mapping[str, str], bad: Grade = Grade.NOTED) -> list[Examination]:
    """Examine this host."""
    if not facts.gpus.visible:
        grade = bad if bad is Grade.BAD else Grade.SKIPPED  # most hosts have none, and that is not worth a note
        remedy = "install the driver, or see what hides the GPU from this shell"
        return [Examination("gpus", grade, facts.gpus.missing, remedy), *_torch(facts, bad)]
    names = [gpu.name for gpu in facts.gpus.visible]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    checks = [Examination("gpus", Grade.GOOD, counted)]
    if facts.gpus.split:
        remedy = "give each worker its instance in CUDA_VISIBLE_DEVICES: CUDA shows a process one of them"
        checks.append(Examination("mig", Grade.NOTED, "a GPU is divided into MIG instances", remedy))
    checks += [
        Examination("driver", Grade.GOOD if facts.driver else Grade.SKIPPED, f"driver {facts.driver or 'of unknown version'}"),
        *_torch(facts, bad),
        *_nccl(facts, bad),
        *_variables(environment, bad),
    ]
    for uuid, workers in facts.shared.items():
        found = f"{' and '.join(workers)} compute on one GPU ({uuid})"
        remedy = "NCCL takes one member a GPU: start one worker for each (-n gpu), and have each choose the GPU of FTLIB_GPU"
        checks.append(Examination("sharing", bad, found, remedy))
    return checks


def compared(facts: HostFacts, theirs: Mapping[str, str], where: str, bad: Grade = Grade.NOTED) -> list[Examination]:
    """Compare with what the doctor at another host says (see ``HostFacts.advertised``)."""
    if "gpus" not in theirs:
        text = f"{where} does not say its versions: run ftlib doctor --listen at its host to compare them"
        return [Examination("versions", Grade.SKIPPED, text)]
    if theirs["gpus"] == "0":
        text = f"the host of {where} has no GPU for its members"
        return [Examination("versions", bad, text, "everything goes by Gloo as long as one member has none")]
    checks = []
    ours = facts.advertised()
    for name in _TOGETHER:
        if name not in ours or name not in theirs or ours[name] == theirs[name]:
            continue
        found = f"{name} is {ours[name]} here and {theirs[name]} at the host of {where}"
        if name == "nccl":
            remedy = "install the same version on both: members with different ones use Gloo"
            checks.append(Examination("versions", bad, found, remedy))
        else:
            checks.append(Examination("versions", Grade.NOTED, found, "the same on all hosts is what is tested together"))
    return checks or [Examination("versions", Grade.GOOD, f"the same versions at the host of {where}")]


def summary(facts: HostFacts, checks: list[Examination]) -> str:
    """One line about this host."""
    said = "; ".join(str(check) for check in checks if check.grade in (Grade.BAD, Grade.NOTED))
    if not facts.gpus.visible:
        return (
            said
            or f"{facts.gpus.missing}; torch {facts.torch or 'of unknown version'} computes on the CPU, and Gloo carries all"
        )
    has = ", ".join(
        check.found for check in checks if check.grade is Grade.GOOD and check.name in ("gpus", "driver", "torch", "nccl")
    )
    return f"{has}; {said or 'nothing here keeps members from using NCCL together'}"


def _torch(facts: HostFacts, bad: Grade) -> list[Examination]:
    if facts.trouble:
        return [Examination("torch", bad, facts.trouble, "see that python -c 'import torch' works in this shell")]
    if not facts.gpus.visible:
        return [Examination("torch", Grade.GOOD, f"torch {facts.torch}")]
    if not facts.cuda:
        return [Examination("torch", bad, f"torch {facts.torch} was built without CUDA", "install a build of torch with CUDA")]
    if not facts.available:
        found = f"torch {facts.torch} cannot use CUDA {facts.cuda} here ({facts.why or 'it does not say why'})"
        return [Examination("torch", bad, found, "install a driver that is new enough for it, or a torch for an older CUDA")]
    return [Examination("torch", Grade.GOOD, f"torch {facts.torch} for CUDA {facts.cuda}"), _reconfigure(facts)]


def _reconfigure(facts: HostFacts) -> Examination:
    """Only to be known: why ftlib does not use it stands in docs/network.md."""
    text = (
        "torch's ProcessGroup.reconfigure is there, and not used"
        if facts.reconfigure
        else "torch has no ProcessGroup.reconfigure"
    )
    return Examination("reconfigure", Grade.SKIPPED, text)


def _nccl(facts: HostFacts, bad: Grade) -> list[Examination]:
    if not facts.nccl:
        if not facts.cuda:
            return []  # said already
        return [Examination("nccl", bad, f"torch {facts.torch} was built without NCCL", "install one that has it")]
    oldest = ".".join(map(str, OLDEST_NCCL))
    if tuple(int(part) for part in facts.nccl.split(".")) < OLDEST_NCCL:
        remedy = f"ftlib needs {oldest} or newer, as in torch 2.11 and later"
        return [Examination("nccl", bad, f"NCCL {facts.nccl} cannot be stopped without being freed", remedy)]
    return [Examination("nccl", Grade.GOOD, f"NCCL {facts.nccl}")]


def _variables(environment: Mapping[str, str], bad: Grade) -> list[Examination]:
    """Examine the variables of this shell that NCCL reads."""
    checks = []
    if environment.get("NCCL_COMM_BLOCKING", "").strip() == "1":
        found = "NCCL_COMM_BLOCKING=1 makes calls of NCCL wait, so that a failure could not end them"
        checks.append(Examination("nccl settings", bad, found, "unset it"))
    chosen = environment.get("NCCL_SOCKET_IFNAME", "")
    try:
        host = parse_address(environment.get("FTLIB_BIND", ""))[0]
    except ValueError:
        host = ""  # not given
    interface = interface_name(host) if host and chosen else ""
    if interface and not takes(chosen, interface):
        found = f"NCCL_SOCKET_IFNAME={chosen} leaves out {interface}, the interface of FTLIB_BIND={environment['FTLIB_BIND']}"
        checks.append(Examination("nccl settings", bad, found, "unset it, or name the interface that leads to the other hosts"))
    return checks


def takes(chosen: str, interface: str) -> bool:
    """Whether ``NCCL_SOCKET_IFNAME=chosen`` lets NCCL use the interface.

    It lists beginnings of names; after ``=``, whole names; after ``^``, those to leave out (the user guide of NCCL,
    "Environment Variables").
    """
    others = chosen.startswith("^")
    names = chosen.removeprefix("^")
    exact = names.startswith("=")
    listed = [name.partition(":")[0] for name in names.removeprefix("=").split(",")]
    found = any(interface == name if exact else bool(name) and interface.startswith(name) for name in listed)
    return found is not others
