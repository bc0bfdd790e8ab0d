"""Chips as targets: whole models on a simulated chip, alone and beside a processor."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.modules import load_module
from support.quantized_digits import REPOSITORY, digits_int8

import tilewright as tw
from tilewright.support.errors import TilewrightError, UnsupportedError, UsageError
from tilewright.targets.base import find

DESCRIPTION = '''
from dataclasses import dataclass
from tilewright.targets.chips.outer4 import Outer4

@dataclass(frozen=True)
class Other(Outer4):
    """Outer4 with another name."""
    name = "other"

CHIP = Other
'''


NETWORKS = load_module("quantized_networks", REPOSITORY / "benchmarks" / "quantized_networks.py")


def residual_network(powers=False):
    """Two blocks with a residual, the second one with a stride, an average and a classifier."""
    network = NETWORKS.Network(powers=powers)
    x = network.conv(network.image(16), 16)
    for outputs, stride in ((16, 1), (24, 2)):
        y = network.conv(network.conv(x, outputs, 3, stride), outputs, limit="")
        if stride > 1:
            x = network.conv(x, outputs, 1, stride, limit="")
        x = network.add(y, x, "relu")
    return network.model(network.dense(network.mean(x), 10), (1, 10))


def small_mobilenet(powers=False):
    """MobileNetV2 with four blocks, two of them with a residual."""
    blocks = ((1, 8, 1, 1), (4, 16, 2, 2), (4, 24, 2, 1), (4, 24, 1, 1))
    return NETWORKS.mobilenet_v2(32, blocks, first=16, last=64, classes=10, powers=powers)


def small_float_network():
    rng = np.random.default_rng(1)
    constants = {"w": (20, 30), "b": (30,), "v": (30, 10)}
    arrays = {k: rng.standard_normal(s).astype(np.float32) for k, s in constants.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["rv"]),
        helper.make_node("Softmax", ["rv"], ["y"], axis=-1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 20])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 10])
    stored = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "dense", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def on(run, chip):
    """The kernels that run on the chip, and those that do not."""
    lines = [line for line in str(run.explain()).splitlines() if " runs on " in line]
    return [n for n in lines if f" runs on {chip}:" in n], [n for n in lines if f" runs on {chip}:" not in n]


SMALL = ":array=8,bus=8,weight_kb=8,activation_kb=4,accumulator_kb=8"


@pytest.mark.parametrize(
    ("make", "size", "powers", "parameters", "kernels"),
    [
        (residual_network, 16, False, "", 6),
        (residual_network, 16, True, "", 6),
        (residual_network, 16, False, SMALL, 6),
        (small_mobilenet, 32, False, "", 13),
        (small_mobilenet, 32, True, "", 13),
    ],
    ids=["residuals", "residuals, powers of two", "residuals, 8 x 8", "mobilenet", "mobilenet, powers of two"],
)
def test_integers_are_the_same_bits_as_on_the_processor(make, size, powers, parameters, kernels):
    """With powers of two many sums are exact halves of a step, which go to the even neighbour on the chip too."""
    model = make(powers)
    x = np.random.default_rng(2).uniform(-2, 2, (1, 3, size, size)).astype(np.float32)
    run = tw.compile(model, target=f"cpu+systolic32{parameters}", threads=1)
    (got,), (want,) = run(x), tw.compile(model, target="cpu", threads=1)(x)
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(got)) > 3
    assert len(on(run, "systolic32")[0]) >= kernels
    even = [i["even"] for p in run._runner.programs.values() for i in p.streams["post"]]
    assert any(even) == powers


def test_the_digits_are_read_on_a_chip():
    images, labels, model = digits_int8()
    run, alone = (tw.compile(model, target=t, threads=1) for t in ("cpu+systolic32", "cpu"))
    assert len(on(run, "systolic32")[0]) == 3
    got = [run.run({"image": x[None]})[0][0] for x in images[:128]]
    np.testing.assert_array_equal(got, [alone.run({"image": x[None]})[0][0] for x in images[:128]])
    assert np.mean(np.argmax(got, 1) == labels[:128]) > 0.97


@pytest.mark.parametrize("target", ["outer4", "cpu+outer4", "outer4:array=8,scratch_kb=64"])
def test_floats_on_another_chip(target, tmp_path):
    model = small_float_network()
    x = np.random.default_rng(3).standard_normal((8, 20)).astype(np.float32)
    run = tw.compile(model, target=target, threads=1)
    (got,), (want,) = run(x), tw.compile(model, threads=1)(x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    there, elsewhere = on(run, "outer4")
    assert len(there) == 3 and not elsewhere
    run.save(tmp_path / "m.tw")
    assert np.array_equal(tw.load(tmp_path / "m.tw")(x)[0], got)


def test_a_chip_in_a_file(tmp_path):
    path = tmp_path / "other.py"
    path.write_text(DESCRIPTION)
    model, x = small_float_network(), np.ones((8, 20), np.float32)
    run = tw.compile(model, target=f"cpu+{path}", threads=1)
    np.testing.assert_allclose(run(x)[0], tw.compile(model, threads=1)(x)[0], rtol=1e-5, atol=1e-6)
    assert len(on(run, "other")[0]) == 3


def test_what_the_host_does_faster_stays_there(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(DESCRIPTION.replace('name = "other"', 'name = "slow"\n    host_rate = 1e15'))
    run = tw.compile(small_float_network(), target=f"cpu+{path}", threads=1)
    there, elsewhere = on(run, "slow")
    assert not there and all("on the host" in line for line in elsewhere)


def test_a_chip_alone_says_what_it_cannot_do():
    with pytest.raises(UnsupportedError, match=r"systolic32 cannot run all .*no instruction computes") as e:
        tw.compile(small_float_network(), target="systolic32")
    assert "cpu+systolic32" in e.value.hint


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cpu+systolic33", "unknown target 'systolic33'"),
        ("cpu+systolic32:sides=3", "systolic32 has no parameter 'sides'"),
        ("cpu+systolic32:array=many", "is no number for array"),
        ("cpu+systolic32:array", "is no parameter"),
        ("systolic32:array=12", "is not a multiple of its word"),
        ("cpu:threads=3", "has no parameters"),
        ("cpu+c", "c cannot stand beside cpu"),
        ("nothing.py", "there is no file nothing.py"),
    ],
)
def test_names_that_are_wrong(target, message):
    with pytest.raises(TilewrightError, match=message):
        tw.compile(small_float_network(), target=target)


def test_files_that_describe_no_chip(tmp_path):
    for text, message in (
        ("CHIP = 3", "describes no chip"),
        ("import nothing_there", "cannot be read: ModuleNotFound"),
    ):
        path = tmp_path / "wrong.py"
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            tw.compile(small_float_network(), target=str(path))


TWO = """
from dataclasses import dataclass
from typing import ClassVar

from tilewright.targets.accelerator import Chip
from tilewright.targets.chips.outer4 import Outer4
from parts_of_chips import CLOCK

@dataclass(frozen=True)
class First(Outer4):
    name: ClassVar[str] = "first"
    clock: ClassVar[float] = CLOCK

@dataclass(frozen=True)
class Second(Outer4):
    name: ClassVar[str] = "second"
    clock: ClassVar[float] = 2 * CLOCK
"""


def test_several_chips_of_one_file_with_a_file_beside_it(tmp_path):
    """A chip is named after the colon; parts may be imported, and belong to what programs depend on."""
    path = tmp_path / "chips.py"
    path.write_text(TWO)
    seen = []
    for clock in (1e8, 3e8):
        (tmp_path / "parts_of_chips.py").write_text(f"CLOCK = {clock}")
        sys.modules.pop("parts_of_chips", None)
        first, second = (find(f"{path}:{n}") for n in ("first", "second"))
        assert (first.chip.clock, second.chip.clock) == (clock, 2 * clock)
        assert find(second.name).chip.clock == 2 * clock
        assert find(find(f"{path}:second,array=2").name).chip.array == 2
        seen.append(first.coprocessor.tuned_on()[1])
    assert seen[0] != seen[1], "the file beside it has changed"
    other = tmp_path / "other"
    other.mkdir()
    (other / "chips.py").write_text(TWO + "CHIP = Second")
    (other / "parts_of_chips.py").write_text("CLOCK = 5e8")
    assert find(str(other / "chips.py")).chip.clock == 1e9, "its own file of that name"
    assert str(tmp_path) not in sys.path and str(other) not in sys.path
    with pytest.raises(UsageError, match="has several chips: first, second"):
        find(str(path))
    with pytest.raises(UsageError, match="no chip 'third'") as e:
        find(f"cpu+{path}:third")
    assert "first, second" in e.value.hint
