"""The page of layers on a chip."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from support.chip_programs import add_relu, bordered, on_chip, quantized_matmul

from tilewright.report.chip_html import ENGINE_BOXES, boxes, page
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.layers import LayerRun, work_of
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.timing import EngineTime
from tilewright.targets.chips import outer4, systolic32

SYSTOLIC, OUTER = Formats(systolic32.CHIP()), Formats(outer4.CHIP())
EMPTY = {"meta", "br"}


class Reader(HTMLParser):
    """What is open, how often each tag was, what refers to elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links, self.wrong = [], {}, [], []

    def handle_starttag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]
        self.check(tag, dict(attrs))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.check(tag, dict(attrs))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def check(self, tag, attrs):
        """Numbers of drawings are numbers, and no length is negative."""
        for k in ("x", "y", "width", "height", "cx", "cy", "r", "x1", "x2", "y1", "y2"):
            value = attrs.get(k)
            if value and not re.fullmatch(r"-?\d+(\.\d+)?%?" if k[0] in "xyc" else r"\d+(\.\d+)?%?", value):
                self.wrong.append((tag, k, value))


def layer(name, kernel, formats, tiles, order):
    work = work_of(select(kernel, formats.listing))
    return LayerRun.of(name, [f"/{name}"], on_chip(kernel, formats, tiles, order), formats, work)


@pytest.fixture(scope="module")
def runs():
    return [
        layer("first <conv>", bordered(8, 8, 32), SYSTOLIC, {"i0": 3}, ("i0",)),
        layer("second", quantized_matmul(50, 70, 80), SYSTOLIC, {"i0": 16, "j0": 32, "k0": 32}, ("j0", "i0", "k0")),
    ]


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open and not reader.wrong
    return reader


def test_a_page_that_needs_nothing_else(runs):
    text = page(runs, SYSTOLIC, "two & more")
    reader = read(text)
    assert not reader.links and "http" not in text and "url(" not in text.partition("</style>")[2]
    assert "two &amp; more on systolic32" in text and "first &lt;conv&gt;" in text and "<conv>" not in text
    assert reader.seen["details"] == 2 and reader.seen["circle"] == 2
    assert reader.seen["table"] == 2 * 2 + 1


def test_numbers_of_the_page(runs):
    text = page(runs, SYSTOLIC, "model")
    cycles = sum(r.cycles for r in runs)
    assert f"<b>{cycles:,}</b><span>cycles</span>" in text and "at 500 MHz" in text
    for r in runs:
        assert f"data-v='{r.utilization}'" in text and r.bound in text
        for e in r.engines:
            assert f"<td>{e.name}</td><td>{e.instructions:,}</td><td>{e.busy:,}</td>" in text
    assert "load or store 32 B/cycle" in text and "load and store 64 B/cycle" in text and "array 1024" in text
    assert "mma m=1,1,16" in text  # an instruction of the timeline


def test_another_chip_and_nothing_at_all():
    run = layer("add", add_relu(8, 9), OUTER, {"i0": 3}, ("i0",))
    assert "vector" in page([run], OUTER, "small")
    read(page([run], OUTER, "small"))
    read(page([], OUTER, "nothing"))


def test_boxes_are_few():
    """However many instructions there are, and however they lie."""
    for long, gap in ((1, 0), (1, 3), (40, 1), (1, 500), (700, 900)):
        began = [n * (long + gap) for n in range(20_000)]
        left = [b + long for b in began]
        found = list(boxes(EngineTime(began=began, left=left, finished=left), left[-1], ENGINE_BOXES))
        assert len(found) <= ENGINE_BOXES + 1
        assert found[0][0] == 0 and found[-1][1] == 19_999
        assert all(b[0] == a[1] + 1 and b[2] >= a[3] for a, b in pairwise(found))
