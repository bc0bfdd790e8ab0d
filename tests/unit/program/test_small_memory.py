"""Order of calls and places of buffers for small arenas, and what is said when a limit cannot be kept."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.cli import main
from tilewright.program.memory import lifetimes, live_bytes, picture, table
from tilewright.program.offset_search import LiveRange, place
from tilewright.program.order import best_order
from tilewright.program.plan import CallEffects, StorageValue, plan_memory
from tilewright.support.errors import UsageError

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "digits.onnx"


def random_graph(rng, count):
    """A random program: every step reads one to three earlier values and writes one, some in place."""
    values, steps = [StorageValue(64, home=("input", 0))], []
    for n in range(count):
        reads = sorted(set(rng.integers(0, n + 1, rng.integers(1, 4)).tolist()))
        size = int(rng.integers(1, 30)) * 16
        inplace = []
        if rng.random() < 0.5:
            source = reads[0]
            if source:
                size = values[source].nbytes
                inplace = [(0, 0)]
        values.append(StorageValue(size))
        steps.append(CallEffects(tuple(reads), (n + 1,), tuple(inplace)))
    reads = [v for s in steps for v in s.reads]
    outputs = [v for v in range(1, count + 1) if v not in reads]
    # whether an output takes the place of an operand with several readers depends on the order, which is left out
    steps = [CallEffects(s.reads, s.writes, s.inplace if s.writes[0] not in outputs else ()) for s in steps]
    return values, steps, outputs


def reorder(steps, order):
    return [steps[i] for i in order]


def valid(steps, order):
    written = {0}
    for s in reorder(steps, order):
        if not set(s.reads) <= written:
            return False
        written |= set(s.writes)
    return True


@pytest.mark.parametrize("seed", range(12))
def test_best_order_is_the_best_of_all(seed):
    values, steps, outputs = random_graph(np.random.default_rng(seed), 6)
    found = best_order(values, steps, outputs, align=1)
    assert found.exact and valid(steps, found.steps)
    peaks = [
        plan_memory(values, reorder(steps, p), outputs, align=1).bound
        for p in itertools.permutations(range(6))
        if valid(steps, p)
    ]
    assert plan_memory(values, reorder(steps, found.steps), outputs, align=1).bound == found.peak == min(peaks)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_order_is_never_worse(seed):
    values, steps, outputs = random_graph(np.random.default_rng(100 + seed), 40)
    found = best_order(values, steps, outputs, limit=10)
    assert valid(steps, found.steps) and found.peak <= found.given_peak


@pytest.mark.parametrize("seed", range(8))
def test_tight_plan_does_not_overlap(seed):
    rng = np.random.default_rng(seed)
    blocks = [
        LiveRange(int(a), int(a + rng.integers(0, 5)), int(rng.integers(1, 20)) * 8) for a in rng.integers(0, 20, 25)
    ]
    live = [sum(b.size for b in blocks if b.first <= t <= b.last) for t in range(25)]
    found = place(blocks, max(live), sum(b.size for b in blocks))
    assert found is not None and found[0] <= 1.1 * max(live)
    for (a, i), (b, j) in itertools.combinations(zip(blocks, found[1], strict=True), 2):
        if a.first <= b.last and b.first <= a.last:
            assert i + a.size <= j or j + b.size <= i


@pytest.mark.parametrize("seed", range(8))
def test_the_pieces_of_a_limit_add_up(seed):
    """A softmax in the place of its operand, skip connections: the numbers named are those alive, each byte once."""
    rng = np.random.default_rng(seed)
    names, nodes, width = ["x"], [], int(rng.integers(3, 9)) * 8
    for i in range(int(rng.integers(4, 14))):
        kind, source = rng.choice(["Softmax", "MatMul"]), names[int(rng.integers(max(len(names) - 3, 0), len(names)))]
        nodes.append(helper.make_node(kind, [source] * (1 + (kind == "MatMul")), [f"v{i}"], name=f"n{i}"))
        names.append(f"v{i}")
    last = helper.make_node("Sum", names[-3:], ["y"], name="sum")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [width, width]) for n in "xy"]
    graph = helper.make_graph([*nodes, last], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(UsageError) as e:
        tw.compile(model, target="c", arena_limit=1)
    alive = int(re.search(r"alone has (\d+) bytes alive", str(e.value)).group(1))
    pieces = str(e.value).splitlines()[0].partition("bytes alive: ")[2].split("; ")
    assert sum(int(piece.rpartition(" ")[2]) for piece in pieces) == alive


def test_peak_of_a_microcontroller_is_ram():
    compiled = tw.compile(DIGITS, target="cortex-m4", inputs={"image": (1, 1, 8, 8)})
    memory = compiled.memory
    assert memory.peak == memory.arena + memory.scratch < memory.weights
    assert re.search(r"^  peak +6.0 KiB of RAM; weights and code stay where", compiled.explain(), re.M)


def test_limit_names_the_kernel_and_what_would_help():
    with pytest.raises(
        UsageError, match=r"needs \d+ bytes of working memory, the limit is 1024: call \d+ \(.*Conv"
    ) as e:
        tw.compile(DIGITS, target="c", inputs={"image": (1, 1, 8, 8)}, arena_limit=1024)
    assert "what would help" in e.value.hint
    tw.compile(DIGITS, target="c", inputs={"image": (1, 1, 8, 8)}, arena_limit=1 << 20)


def test_table_and_picture():
    program = tw.compile(DIGITS, target="c", inputs={"image": (1, 1, 8, 8)}).package.program
    assert max(live_bytes(program)) <= program.arena_size
    assert len(table(program).splitlines()) == len(program.calls) + 2
    boxes = [e for e in ET.fromstring(picture(program)).iter() if e.tag.endswith("rect")]
    assert len(boxes) == len(lifetimes(program)) > 1


def test_command_line(tmp_path, capsys):
    common = ["compile", str(DIGITS), "--shape", "image=1x1x8x8", "--target", "c"]
    assert main([*common, "-o", str(tmp_path / "out")]) == 0
    assert {"digits.c", "digits.h", "memory.svg"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert main([*common, "-o", str(tmp_path / "out"), "--arena-limit", "1K"]) == 2
    assert "the limit is 1024" in capsys.readouterr().err
    assert main([*common, "-o", str(tmp_path / "out"), "--arena-limit", "much"]) == 2
    assert main([*common, "-o", str(tmp_path / "out"), "--setting", "weights"]) == 2
