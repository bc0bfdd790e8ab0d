"""The picture of what a chip's engines do when: well-formed, small, at the cycles of the simulator."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from support.chip_kernels import matmul

from tilewright.report.chip_svg import BOXES, LEFT, WIDTH, timeline
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.layers import LayerRun, work_of
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import best
from tilewright.targets.chips.systolic32 import Systolic32

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def shown():
    formats = Formats(Systolic32(array=4))
    runs = []
    for n, size in enumerate(((64, 64, 64), (9, 5, 3))):
        found = select(matmul(*size), formats.listing)
        runs.append(LayerRun.of(f"layer{n}", (f"node<{n}>",), best(found, formats), formats, work_of(found)))
    return runs, formats


def test_lanes_layers_and_boxes(shown):
    runs, formats = shown
    text = timeline(runs, formats)
    root = ElementTree.fromstring(text)
    words = [t.text for t in root.iter(f"{SVG}text")]
    assert words[: len(formats.engines)] == list(formats.engines)
    assert "node<0>" in words and f"{runs[0].cycles:,} cycles" in text
    boxes = [r for r in root.iter(f"{SVG}rect") if "fill" in r.attrib and r.get("class") is None]
    ends = [float(r.get("x")) + float(r.get("width")) for r in boxes]
    assert min(float(r.get("x")) for r in boxes) >= LEFT and max(ends) <= WIDTH - 9
    assert len(boxes) <= 2 * BOXES * len(formats.engines)  # thousands of instructions
    assert sum(len(s) for r in runs for s in r.program.streams.values()) > len(boxes)
    assert len(text) < 60_000


def test_layers_begin_where_the_one_before_ends(shown):
    runs, formats = shown
    lines = [float(x) for x in re.findall(r'class="layer" x1="([\d.]+)"', timeline(runs, formats))]
    total = sum(r.cycles for r in runs)
    assert lines == pytest.approx([LEFT, LEFT + (WIDTH - LEFT - 10) * runs[0].cycles / total], abs=0.1)


def test_the_same_runs_are_the_same_picture(shown):
    runs, formats = shown
    assert timeline(runs, formats) == timeline(runs, formats)
    assert "0 layers on systolic32" in timeline([], formats)
