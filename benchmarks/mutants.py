"""Mutants: the product with one small error planted, and whether any test that runs over that line notices.

    python -m benchmarks mutants protocol --seconds 3600   # tries on from where the last run ended
    python -m benchmarks mutants protocol --deep           # those that survived once more, by histories and other rooms' tests
    python -m benchmarks mutants plane --report            # what has been tried so far, and which mutants survived

A mutant lives in a forked process that has everything loaded: the code of the one function is exchanged, and the tests that
cover the line run, quickest first, until one fails. That takes milliseconds to seconds. Which tests cover what is noted once,
by running each test under a tracer. Results go to ``out/mutants``, a line each; a mutant is known by its function's source, so
results of functions that have not changed since are kept. ``-j`` tries several at a time, as many tests mostly wait; give it a
low priority with ``nice``.

Planted are errors in functions only: comparisons, ``and`` for ``or``, signs, numbers, conditions turned round, results, calls
and assignments to attributes left out. Texts and log lines stay as they are. A survivor is a question, not a verdict: it may be
equivalent, or behind a rule that another one implies.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn, Self, TypeVar

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "out" / "mutants"
CODE = {
    "protocol": ("consensus/protocol",),
    "plane": (
        "ftlib/core/calls/salvage.py",
        "ftlib/core/plane",
        "ftlib/recovery",
    ),
}
TESTS = {
    "protocol": ("tests/protocol", "tests/transcripts"),
    "plane": (
        "tests/ftlib/recovery",
        "tests/ftlib/plane",
        "tests/ftlib/metrics",
        *(
            f"tests/ftlib/{name}.py"
            for name in (
                "calls/test_results_as_gradients",
                "calls/test_salvage",
                "calls/test_veto",
                "data/test_consumption",
                "lifecycle/test_job_ended",
                "state/test_registering",
            )
        ),
    ),
}
DEEP = {
    "protocol": tuple(
        f"tests/simulation/{room}test_{name}.py"
        for room, names in {
            "": ("faults", "scripts", "store"),
            "histories/": ("found", "training_histories"),
            "stories/": (
                "any",
                "failpoints",
                "fencing",
                "founding_apart",
                "last_of_many",
                "late_words",
                "leases",
                "lost_way_to_the_store",
                "odd_ones",
                "split_with_store",
                "stalls",
                "words_of_the_dead",
            ),
        }.items()
        for name in names
    ),
    "plane": ("tests/ftlib",),
}
"""What those that survived are tried by, which takes longer: histories, random ones only where each is short; whole rooms."""
LONGEST = 12.0
"""Seconds of processor time above which a test is not used, as traced."""
BUDGET = 6.0
"""Seconds of tests, as traced, that one mutant is worth by default; the last test begun may go beyond."""
_QUIET = frozenset({"note", "debug", "info", "warning", "error", "exception", "log", "append_note"})
"""Calls that only tell; they are left alone with all that is in them."""
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}

T = TypeVar("T")
Tests = Mapping[tuple[str, int], list[tuple[float, str]]]
"""By file and line: the tests that run over it, each after the seconds that it takes."""


@dataclass(frozen=True)
class Mutant:
    """One planted error: the ``number``-th of its function."""

    file: str
    function: str
    line: int
    number: int
    what: str
    source: str
    """A digest of the function."""

    @property
    def key(self) -> str:
        return f"{self.file}:{self.function}:{self.source}:{self.number}"


# --- planting ------------------------------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and methods of its classes, by qualified name; what is defined within them belongs to them."""

    def within(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from within(node.body, f"{prefix}{node.name}.")

    return within(tree.body, "")


def sites(function: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Line, description and deed of each error that can be planted in a function; a deed changes the tree."""
    for parent in ast.walk(function):
        if not getattr(parent, "ours", parent is function):
            continue
        for field, value in ast.iter_fields(parent):
            if parent is function and field != "body":
                continue
            for place, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(node, ast.AST) or field in ("annotation", "returns"):
                    continue
                if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or _quiet(node):
                    continue
                node.ours = True  # type: ignore[attr-defined]
                yield from _errors(parent, field, place, node)


def _quiet(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in _QUIET


def _errors(parent: ast.AST, field: str, place: int | None, node: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    found = _otherwise(node, field) or _left_out(node)
    if found is None:
        return
    what, new = found

    def deed() -> None:
        ast.copy_location(new, node if hasattr(node, "lineno") else parent)
        if place is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[place] = new
        ast.fix_missing_locations(parent)

    yield getattr(node, "lineno", getattr(parent, "lineno", 0)), what, deed


def _otherwise(node: ast.AST, field: str) -> tuple[str, ast.AST] | None:
    """An expression or operator with another value, and what is wrong with it."""
    kind = type(node)
    if kind in _SWAPPED and field in ("ops", "op"):
        return f"{kind.__name__} becomes {_SWAPPED[kind].__name__}", _SWAPPED[kind]()
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return f"{node.value} becomes {not node.value}", ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return f"{node.value} becomes {node.value + 1}", ast.Constant(node.value + 1)
    if isinstance(node, ast.Name) and node.id in _NAMES and field == "func":
        return f"{node.id} becomes {_NAMES[node.id]}", ast.Name(_NAMES[node.id], ast.Load())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "not left out", node.operand
    several = len(node.ops) > 1 if isinstance(node, ast.Compare) else True  # else its operator is swapped
    if isinstance(node, ast.expr) and field in ("test", "ifs") and several:
        return "condition turned round", ast.UnaryOp(ast.Not(), node)
    return None


def _left_out(node: ast.AST) -> tuple[str, ast.AST] | None:
    """What stands in a statement's place that is left out, or leads elsewhere."""
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant | ast.Compare):
        return "returns None", ast.Return(ast.Constant(None))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        # A method without its ``super`` still has to have ``__class__`` among its free variables, as the living function has.
        uses_super = any(isinstance(each, ast.Name) and each.id == "super" for each in ast.walk(node))
        return "call left out", ast.Expr(ast.Name("__class__", ast.Load())) if uses_super else ast.Pass()
    kept = isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if kept or isinstance(node, ast.AugAssign | ast.Delete):
        return "assignment left out", ast.Pass()
    if isinstance(node, ast.Continue | ast.Break):
        there, instead = ("continue", "break") if isinstance(node, ast.Continue) else ("break", "continue")
        return f"{there} becomes {instead}", ast.Break() if instead == "break" else ast.Continue()
    return None


def mutants_of(path: Path) -> list[Mutant]:
    found = []
    for name, function in functions(ast.parse(path.read_text())):
        if name.rpartition(".")[2] in ("__repr__", "__str__"):
            continue
        digest = hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:10]
        file = str(path.relative_to(ROOT))
        found += [Mutant(file, name, line, number, what, digest) for number, (line, what, _) in enumerate(sites(function))]
    return found


def planted(mutant: Mutant, tree: ast.Module) -> CodeType | None:
    """The code of the function with its error."""
    tree = copy.deepcopy(tree)
    function = dict(functions(tree))[mutant.function]
    next(deed for number, (_, _, deed) in enumerate(list(sites(function))) if number == mutant.number)()
    module = compile(tree, str(ROOT / mutant.file), "exec")
    return next((code for code in codes(module) if code.co_qualname == mutant.function), None)


def codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            if "<locals>" not in constant.co_qualname:
                yield from codes(constant)


# --- which tests run over what -------------------------------------------------------------------------------------------


def _in_turn(mutants: list[Mutant]) -> list[Mutant]:
    """One of each file, then the next one of each: whatever time there is, all files get some of it."""
    rounds: Counter[str] = Counter()
    order = []
    for mutant in mutants:
        rounds[mutant.file] += 1
        order.append((rounds[mutant.file], mutant))
    return [mutant for _, mutant in sorted(order, key=lambda each: each[0])]


class Cover:
    """Lines of some files that run while it is on."""

    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        self.lines: set[tuple[str, int]] = set()
        self._left: dict[CodeType, set[int]] = {}

    def __enter__(self) -> Self:
        threading.settrace(self._entered)
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _entered(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = {line for _, _, line in code.co_lines() if line}
        left.discard(frame.f_lineno)
        self.lines.add((code.co_filename, frame.f_lineno))
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
            self._left[frame.f_code].discard(frame.f_lineno)
        return self._line


class Runner:
    """A plugin of pytest whose loop tries mutants instead of running each test once."""

    def __init__(self, name: str, seconds: float, budget: float, only: str, deep: bool, jobs: int) -> None:
        self._name, self._budget, self._only, self._deep, self._jobs = name, budget, only, deep, jobs
        self._until = time.monotonic() + seconds
        self._failed = ""
        self._items: dict[str, pytest.Item] = {}
        self._living: defaultdict[tuple[str, str], list[FunctionType]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before everything that has been imported leaves the collector's sight: which functions there are."""
        self._items = {item.nodeid: item for item in session.items}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename.startswith(str(ROOT)):
                self._living[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = self._failed or report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = sources(self._name)
        cover = self._cover(session, files)
        tests: defaultdict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)
        for test, (took, lines) in cover.items():
            for file, line in lines:
                tests[file, line].append((took, test))
        todo = [mutant for path in files for mutant in mutants_of(path)]
        random.Random(1).shuffle(todo)
        todo = [mutant for mutant in _in_turn(todo) if self._only in mutant.key]
        trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}
        known = {entry["key"]: entry for entry in results(self._name)}
        if self._deep:
            again = {key for key, entry in known.items() if entry["verdict"] in ("survived", "no test") and not entry["deep"]}
            todo = [mutant for mutant in todo if mutant.key in again]
        else:
            todo = [mutant for mutant in todo if mutant.key not in known]

        def attempt(mutant: Mutant) -> str:
            covering = sorted(tests.get((str(ROOT / mutant.file), mutant.line), []))
            verdict = self._try(mutant, trees[mutant.file], covering)
            return json.dumps({**asdict(mutant), "key": mutant.key, "deep": self._deep, **verdict})

        session.testsfailed += self._share(todo, attempt, RESULTS / f"{self._name}.jsonl")
        return True

    def _share(self, todo: Sequence[T], deed: Callable[[T], str], log: Path) -> int:
        """In several processes, while there is time: do it with each of ``todo``, and append what it returns to ``log``, as a
        line. Returns how many of the processes failed.
        """
        children = [os.fork() or self._work(todo[nth :: self._jobs], deed, log) for nth in range(self._jobs)]
        return sum(os.waitpid(child, 0)[1] != 0 for child in children)

    def _work(self, todo: Sequence[T], deed: Callable[[T], str], log: Path) -> NoReturn:
        status = 1
        try:
            with log.open("a") as lines:
                for each in todo:
                    if time.monotonic() > self._until:
                        break
                    lines.write(deed(each) + "\n")
                    lines.flush()
            status = 0
        except BaseException:  # noqa: BLE001 - nothing of a child goes on in what its parent was doing
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)

    def _cover(self, session: pytest.Session, files: list[Path]) -> dict[str, tuple[float, list[tuple[str, int]]]]:
        """By test: how long it takes, and the lines it runs over. Kept in a file; tests that are not in it are run."""
        path = RESULTS / f"{self._name}-cover.jsonl"
        known = {entry["test"] for entry in _entries(path)}
        names = frozenset(map(str, files))
        todo = [item for item in session.items if item.nodeid not in known]
        if todo:
            print(
                f"{len(todo)} of {len(session.items)} tests run once, to see what they cover", file=sys.__stderr__, flush=True
            )
            session.testsfailed += self._share(todo, lambda item: self._covered(session, item, names), path)
        return {
            entry["test"]: (entry["took"], [(str(ROOT / file), line) for file, line in entry["lines"]])
            for entry in _entries(path)
            if entry["test"] in self._items
        }

    def _covered(self, session: pytest.Session, item: pytest.Item, names: frozenset[str]) -> str:
        """Run a test in a child, and note what it covers; nothing, where it fails or takes too long."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (int(LONGEST), int(LONGEST) + 1))
            began = time.process_time()
            with Cover(names) as cover:
                fine = self._runs(session, [item])
            took = time.process_time() - began if fine else LONGEST
            lines = sorted((file.removeprefix(f"{ROOT}/"), line) for file, line in cover.lines) if fine else []
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps({"test": item.nodeid, "took": round(took, 4), "lines": lines}))
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text or json.dumps({"test": item.nodeid, "took": LONGEST, "lines": []})

    def _try(self, mutant: Mutant, tree: ast.Module, tests: list[tuple[float, str]]) -> dict[str, Any]:
        code = planted(mutant, tree)
        known = () if code is None else self._living[str(ROOT / mutant.file), mutant.function]
        living = [each for each in known if code is not None and each.__code__.co_freevars == code.co_freevars]
        if code is None or not living:
            return {"verdict": "not planted"}
        chosen, total = [], 0.0
        for took, test in tests:
            if total > self._budget:
                break
            chosen.append(self._items[test])
            total += took
        if not chosen:
            return {"verdict": "no test"}
        began = time.monotonic()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(30 + 5 * total))
            resource.setrlimit(resource.RLIMIT_CPU, (int(8 + 3 * total), int(9 + 3 * total)))
            for function in living:
                function.__code__ = code
            fine = self._runs(self._items[chosen[0].nodeid].session, chosen)
            os.write(writer, (b"" if fine else (self._failed or "?").encode()) + b"\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        verdict = "survived" if said == "\n" and status == 0 else "killed" if said else "no end"
        return {"verdict": verdict, "by": said.strip(), "tests": len(chosen), "seconds": round(time.monotonic() - began, 2)}

    def _runs(self, session: pytest.Session, items: list[pytest.Item]) -> bool:
        """In a child: whether all of these tests pass; the first that does not ends it."""
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        terminal = session.config.pluginmanager.unregister(name="terminalreporter")
        assert terminal is not None
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return False
        return True


# --- the command ---------------------------------------------------------------------------------------------------------


def sources(name: str) -> list[Path]:
    return [
        path
        for place in CODE[name]
        for path in ([ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py")))
    ]


def results(name: str) -> list[dict[str, Any]]:
    return list({entry["key"]: entry for entry in _entries(RESULTS / f"{name}.jsonl")}.values())


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(name: str) -> None:
    """What was tried of the code as it stands, and who survived."""
    there = {mutant.key: mutant for path in sources(name) for mutant in mutants_of(path)}
    tried = [entry for entry in results(name) if entry["key"] in there]
    total = Counter(mutant.file for mutant in there.values())
    verdicts = ("killed", "no end", "survived", "no test", "not planted")
    print(f"| file | mutants | tried | {' | '.join(verdicts)} |\n|{' --- |' * (3 + len(verdicts))}")
    for file in [*sorted(total), ""]:
        counts = Counter(entry["verdict"] for entry in tried if file in ("", entry["file"]))
        there_are = total[file] if file else sum(total.values())
        row = [file or "all", there_are, sum(counts.values()), *(counts[verdict] for verdict in verdicts)]
        print("| " + " | ".join(map(str, row)) + " |")
    for entry in sorted(tried, key=lambda entry: (entry["file"], entry["line"])):
        if entry["verdict"] in ("survived", "no test"):
            text = (ROOT / entry["file"]).read_text().splitlines()[there[entry["key"]].line - 1].strip()
            print(f"{entry['file']}:{there[entry['key']].line} {entry['verdict']}: {entry['what']}: {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CODE)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to try on (default: %(default)g)")
    parser.add_argument(
        "--budget", type=float, default=BUDGET, help="seconds of tests that one mutant is worth (default: %(default)g)"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose file:function contains this")
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="try N at a time (default: %(default)d)")
    parser.add_argument("--deep", action="store_true", help="those that survived, by more tests, which takes longer")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="by these tests alone")
    parser.add_argument("--report", action="store_true", help="show what was tried, and try nothing")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if args.report:
        report(args.name)
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    options = ["-q", "-p", "no:cacheprovider", "-o", "timeout=0", "-m", "not soak and not process and not gpu"]
    options += args.tests or (*TESTS[args.name], *(DEEP[args.name] if args.deep else ()))
    status = pytest.main(options, plugins=[Runner(args.name, args.seconds, args.budget, args.only, args.deep, args.jobs)])
    report(args.name)
    return int(status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED))


if __name__ == "__main__":
    sys.exit(main())
