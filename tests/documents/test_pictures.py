"""The pictures are what their scripts draw, and text that does not fit is refused."""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from types import ModuleType

import pytest

from consensus.transitions import Table

from .pages import ROOT

IMGS = ROOT / "imgs"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(IMGS))
    yield
    for module in [name for name in sys.modules if name in {"canvas", "statechart"} or name.startswith("imgs_")]:
        del sys.modules[module]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"imgs_{name}", IMGS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["house", "architecture", "training", "flow", "life", "detection", "change"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    drawn = _load(name).picture()
    assert (IMGS / f"{name}.svg").read_text(encoding="utf-8") == drawn, "run make pictures"
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_make_pictures_draws_every_picture() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PICTURES")]
    assert set(line.split(":=")[1].split()) == {path.stem for path in IMGS.glob("*.svg")}


@pytest.mark.parametrize(
    ("words", "at", "text"),
    [("much too long for it", (100, 100), "takes"), ("out", (199, 100), "leaves the card"), ("x", (100, 150), "overlaps")],
)
def test_text_that_does_not_fit_is_refused(words: str, at: tuple[int, int], text: str) -> None:
    canvas = _load("canvas").Canvas(200, 200, "t", "s")
    canvas.text(100, 150, "there")
    with pytest.raises(ValueError, match=text):
        canvas.text(*at, words, room=50)


def test_the_flows_times_add_up_to_the_measured_ones() -> None:
    """Phases as in docs/figures.md: proof 11-13, settle 5, agree 2, build 6-8, activate 1, average 10; together 36 ms."""
    flow = _load("flow")
    moments = [0, flow.PROOF, flow.ACCEPT, flow.INSTALL, flow.BUILT, flow.ACTIVE, flow.SUCCESS]
    spans = [later - sooner for sooner, later in pairwise(moments)]
    assert spans == [pytest.approx(length) for length in (11.5, 5, 2, 6.5, 1, 10)]


class Light(Enum):
    RED = "red"
    GREEN = "green"


class Turn(Enum):
    GO = "go"
    STOP = "stop"


LIGHTS = Table("lights", Light.RED, {Light.RED: {Turn.GO: Light.GREEN}, Light.GREEN: {Turn.STOP: Light.RED}})


def _lights(without: str = "", aside: float = 0.0) -> None:
    chart = _load("statechart")
    canvas = sys.modules["canvas"].Canvas(600, 300, "t", "s")
    boxes = {Light.RED: chart.Box(50, 100), Light.GREEN: chart.Box(400, 100)}
    arrows = {
        (Light.RED, Turn.GO): chart.Arrow([(178, 110), (399 - aside, 110)], (200, 104)),
        (Light.GREEN, Turn.STOP): chart.Arrow([(399, 130), (179, 130)], None if without == "words" else (200, 150)),
    }
    if without == "arrow":
        del arrows[Light.GREEN, Turn.STOP]
    if without == "row":
        arrows[Light.GREEN, Turn.GO] = arrows[Light.RED, Turn.GO]
    chart.chart(canvas, LIGHTS, boxes, arrows, [(10, 120), (49, 120)])
    assert ET.fromstring(canvas.svg()).tag.endswith("svg")


def test_a_state_diagram_shows_its_table_whole() -> None:
    _lights()


@pytest.mark.parametrize(
    ("without", "text"),
    [
        ("arrow", "GREEN -STOP-> has no arrow"),
        ("row", "there is no GREEN -GO->"),
        ("words", "no arrow says what STOP is"),
    ],
)
def test_a_state_diagram_that_differs_from_its_table_is_refused(without: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _lights(without)


def test_an_arrow_that_leads_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="RED -GO-> does not lead to GREEN"):
        _lights(aside=60)
