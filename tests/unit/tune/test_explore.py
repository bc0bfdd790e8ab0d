"""Exploration of designs: what is varied, what is measured and kept, what is refused, and the page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support.chip_models import dense

from tilewright.cli import main
from tilewright.driver.chip_layers import chip_layers
from tilewright.report.explore_html import page
from tilewright.report.explore_text import headings, rows, summary
from tilewright.support.errors import UsageError
from tilewright.targets.accelerator.designs import Design, DesignMeasurement, Exploration, front
from tilewright.tune import explore as module
from tilewright.tune.explore import MOST, explore, points, vary

CHIP = """
from dataclasses import dataclass
from tilewright.targets.chips.outer4 import Outer4

@dataclass(frozen=True)
class Other(Outer4):
    name = "other"

    def area(self):
        return 0.1 * self.array

CHIP = Other
"""


@pytest.fixture
def counted(monkeypatch):
    """The jobs that were measured in this process."""
    seen, real = [], module.measure

    def measure(job):
        seen.append(job)
        return real(job)

    monkeypatch.setattr(module, "measure", measure)
    return seen


class Reader(HTMLParser):
    """What is open, and how often each tag was."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], {}

    def handle_starttag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open and "http" not in text
    return reader.seen


def test_what_is_varied():
    assert vary([]) == {}
    assert vary(["a=3"]) == {"a": (3,)}
    assert vary(["a = 1..8", "b=4, 8..16 ,8"]) == {"a": (1, 2, 4, 8), "b": (4, 8, 16)}
    assert vary(["a=512..1K", "b=0.5..2.0"]) == {"a": (512, 1024), "b": (0.5, 1, 2)}
    assert points({}) == [{}]
    assert len(points({"a": (1, 2), "b": (3, 4, 5)})) == 6


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["array"], "no NAME=VALUES"),
        (["=3"], "no NAME=VALUES"),
        (["a="], "'' is no number"),
        (["a=8..60"], "8, doubled, is never 60"),
        (["a=64..8"], "from 64 to 8"),
        (["a=0..8"], "from 0 to 8"),
        (["a=8k"], "'8k' is no number"),
        (["a=1", "a=2"], "a is varied already"),
    ],
)
def test_what_cannot_be_varied(texts, message):
    with pytest.raises(UsageError, match=message):
        vary(texts)


def test_too_many():
    with pytest.raises(UsageError, match="10001 designs are too many"):
        points({"a": range(MOST + 1)})


def test_a_front():
    assert front([]) == ()
    assert front([(1, 1), (1, 2), (0, 3), (1, 1)]) == (True, False, True, True)


def test_two_by_two(tmp_path, counted):
    """Measured once; what is added later is all that is measured then."""
    model, db = dense(tmp_path / "net.onnx", 64, 64), tmp_path / "designs.sqlite"
    told = []
    found = explore(
        "outer4", [model], vary(["array=4,8", "scratch_kb=32,64"]), jobs=1, database=db,
        watch=lambda done, count, what: told.append((done, count)),
    )  # fmt: skip
    assert told == [(n, 4) for n in range(5)]
    assert len(counted) == len(found.measured) == 4 and not found.refused and found.models == ("net",)
    small, large = found.designs[0], found.designs[2]
    assert dict(small.parameters) == {"array": 4, "scratch_kb": 32} and large.parameters["array"] == 8
    (m,) = small.models
    assert m.work == 8 * 64 * 64 and m.calls == 1 and m.left == 0 and m.host == 0
    assert m.seconds == pytest.approx(m.cycles / 2e8) == pytest.approx(sum(m.bounds.values()))
    assert m.use == pytest.approx(m.work / (16 * m.cycles)) and 0 < m.use < 1
    assert large.models[0].cycles < m.cycles and large.area == 0  # the chip does not say
    assert any(found.front) and found.best == min(d.seconds for d in found.designs)
    again = explore("outer4", [model], vary(["array=4,8", "scratch_kb=32,64,128"]), jobs=1, database=db)
    assert len(counted) == 6 and again.designs[0] == small and again.designs[3] == large


def test_calls_count_each(tmp_path):
    one = explore("outer4", [dense(tmp_path / "a.onnx", 32, 32)], {}, jobs=1, database=tmp_path / "d")
    three = explore("outer4", [dense(tmp_path / "b.onnx", 32, 32, 3)], {}, jobs=1, database=tmp_path / "d")
    (a,), (b,) = one.designs[0].models, three.designs[0].models
    assert (b.cycles, b.work, b.calls) == (3 * a.cycles, 3 * a.work, 3) and b.energy == pytest.approx(3 * a.energy)


def test_what_is_measured_is_what_compilation_makes(tmp_path):
    """A model is lowered once for all designs, and nothing of the host is compiled: the numbers are the same."""
    model = dense(tmp_path / "net.onnx", 48, 32, 1)
    found = explore("outer4", [model], vary(["array=4,8"]), jobs=1, database=tmp_path / "d")
    for design in found.designs:
        made = chip_layers(model, f"cpu+outer4:array={design.parameters['array']}")
        (measured,) = design.models
        assert measured.cycles == sum(r.cycles for r in made.runs)
        assert measured.work == sum(r.work for r in made.runs)
        assert measured.energy == pytest.approx(sum(r.energy for r in made.runs))


def test_several_processes(tmp_path):
    models = [dense(tmp_path / "a.onnx", 32, 32), dense(tmp_path / "b.onnx", 32, 48)]
    apart = explore("outer4", models, vary(["array=4,8"]), jobs=2, database=tmp_path / "d1")
    here = explore("outer4", models, vary(["array=4,8"]), jobs=1, database=tmp_path / "d2")
    assert apart == here and apart.models == ("a", "b")


def test_an_interruption_keeps_what_is_measured(tmp_path, monkeypatch, counted):
    model, db, design = dense(tmp_path / "net.onnx", 32, 32), tmp_path / "d", vary(["array=4,8"])

    def stop(done, count, what):
        if done == 1:
            raise KeyboardInterrupt

    found = explore("outer4", [model], design, jobs=1, database=db, watch=stop)
    assert found.interrupted and len(found.designs) == 1 and "interrupted" in page(found)
    found = explore("outer4", [model], design, jobs=1, database=db)
    assert not found.interrupted and len(found.designs) == 2 and len(counted) == 2


def test_what_changed_is_measured_again(tmp_path, counted):
    chip, db = tmp_path / "other.py", tmp_path / "d"
    chip.write_text(CHIP)
    model = dense(tmp_path / "net.onnx", 32, 32)
    for _ in range(2):
        (found,) = explore(str(chip), [model], {}, jobs=1, database=db).designs
        assert found.area == pytest.approx(0.4)
    assert len(counted) == 1
    chip.write_text(CHIP + "# another one\n")
    explore(str(chip), [model], {}, jobs=1, database=db)
    assert len(counted) == 2
    dense(tmp_path / "net.onnx", 32, 64)
    explore(str(chip), [model], {}, jobs=1, database=db)
    assert len(counted) == 3


def test_refused_designs(tmp_path):
    model, db = dense(tmp_path / "net.onnx", 32, 32), tmp_path / "d"
    found = explore("outer4", [model], vary(["array=4,5,0"]), jobs=1, database=db)
    assert len(found.designs) == 3 and len(found.measured) >= 1
    zero = found.designs[2]
    assert zero.refused and not zero.models and f"refused: array=0: {zero.refused}" in summary(found)
    assert zero.refused.replace("'", "&#x27;") in page(found)
    with pytest.raises(UsageError, match="no design can be measured; array=0: "):
        explore("outer4", [model], vary(["array=0"]), jobs=1, database=db)


def test_a_model_that_has_nothing_for_the_chip(tmp_path):
    model = dense(tmp_path / "net.onnx", 32, 32)
    with pytest.raises(UsageError, match="net: no kernel runs on the chip"):
        explore("systolic32", [model], {}, jobs=1, database=tmp_path / "d")


def test_shapes_of_dynamic_models(tmp_path, counted):
    model, db = dense(tmp_path / "net.onnx", 32, 32, batch="batch"), tmp_path / "d"
    with pytest.raises(UsageError, match="leaves the shape of 1 input open") as e:
        explore("outer4", [model], {}, jobs=1, database=db)
    assert "inputs=" in e.value.hint
    for batch in (8, 8, 16):
        (found,) = explore("outer4", [model], {}, inputs={"x": (batch, 32)}, jobs=1, database=db).designs
        assert found.models[0].work == batch * 32 * 32
    assert len(counted) == 3


def test_wrong_names(tmp_path):
    model, db = dense(tmp_path / "net.onnx", 32, 32), tmp_path / "d"
    for chip, models, varied, message in (
        ("cpu", [model], {}, "cpu is no chip"),
        ("outer4", [model], {"sides": (1,)}, "outer4 has no parameter 'sides'"),
        ("outer4:array=8", [model], {"array": (4,)}, "array is given in 'outer4:array=8' and varied too"),
        ("outer4", [], {}, "no model is given"),
        ("outer4", [str(tmp_path / "nothing.onnx")], {}, "cannot read the model"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            explore(chip, models, varied, jobs=1, database=db)
    with pytest.raises(UsageError, match="cannot keep designs in"):
        explore("outer4", [model], {}, jobs=1, database=tmp_path)


# ---- what is shown ----


def made(array, seconds, energy, area, bound):
    m = DesignMeasurement(seconds, 100, 0.0, energy, 1000, 0.5, 2, 1, {bound: seconds})
    return Design({"array": array}, area, (m, m))


FOUND = Exploration(
    "<chip>",
    "a chip",
    ("array",),
    ("a & b", "c"),
    (
        made(8, 4e-3, 1e6, 1.0, "array"),
        made(16, 2e-3, 2e6, 2.0, "load"),
        made(32, 2e-3, 3e6, 3.0, "load"),
        Design({"array": 12}, refused="no words of <12>"),
    ),
)


def test_table():
    assert FOUND.front == (True, True, False)
    assert headings(FOUND) == ["array", "a & b", "c", "relative", "energy", "area", "use", "bottleneck", "front"]
    first, *_, last = rows(FOUND)
    assert first == ["16", "2.00 ms", "2.00 ms", "1.00", "4 uJ", "2 mm2", "50.0%", "load 100%", "front"]
    assert last[3:4] == ["2.00"] and len(rows(FOUND)) == 3 and len(rows(FOUND, every=False)) == 2
    assert summary(FOUND) == ["3 designs, 2 on the front; 1 refused", "refused: array=12: no words of <12>"]


def test_the_chip_alone_has_columns_where_the_host_does_a_part():
    beside = [replace(d, models=tuple(replace(m, host=m.seconds / 4) for m in d.models)) for d in FOUND.measured]
    found = replace(FOUND, designs=tuple(beside))
    at = headings(found).index("a & b on chip")
    assert headings(found)[at : at + 3] == ["a & b on chip", "c on chip", "relative"]
    assert rows(found)[0][at : at + 2] == ["1.50 ms", "1.50 ms"]


def test_the_page():
    text = page(FOUND)
    seen = read(text)
    assert seen["svg"] == 2 and seen["circle"] == 2 * 3 and seen["details"] == 3 and seen["polyline"] == 2
    assert "Designs of &lt;chip&gt;" in text and "a &amp; b" in text and "no words of &lt;12&gt;" in text
    assert text.count("class='on'") == 2 * 2
    assert "data-v='0.002'" in text and "load 100%" in text


def test_pages_without_areas_and_without_designs():
    plain = [Design(d.parameters, 0.0, d.models) for d in FOUND.measured]
    seen = read(page(Exploration("c", "", ("array",), ("a", "b"), tuple(plain))))
    assert seen["svg"] == 1
    assert "svg" not in read(page(Exploration("c", "", (), ("a",), (), interrupted=True)))


def test_the_command(tmp_path, capsys, monkeypatch):
    model = dense(tmp_path / "net.onnx", 32, 32)
    html = tmp_path / "designs.html"
    asked = ["explore", "outer4", model, "--vary", "array=4..8", "--jobs", "1", "--database", str(tmp_path / "d")]
    assert main([*asked, "-o", str(html)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == headings(replace(FOUND, models=("net",)))
    assert len(out.splitlines()) == 3 and "2 designs, " in err and "designs.html" in err
    assert read(html.read_text())["details"] == 2
    assert main([*asked[:3], "--vary", "array=8..9"]) == 2
    assert "8, doubled, is never 9" in capsys.readouterr().err
