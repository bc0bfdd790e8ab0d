"""Convolutions with groups whose channels are no whole number of tiles."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.driver.compiler import compile_state
from tilewright.lang import te
from tilewright.runtime.executable import Executable
from tilewright.schedule.schedule import Schedule, ScheduleError

CASES = {  # channels, filters, height, width, groups, window
    "tiles_of_tiles": (20, 192, 9, 11, 4, 3),
    "masked": (33, 99, 6, 8, 3, 1),
    "few": (12, 20, 7, 7, 4, 3),
    "many_groups": (64, 64, 5, 6, 32, 3),
}


def model(channels, filters, height, width, groups, window):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((filters, channels // groups, window, window)).astype(np.float32)
    b = rng.standard_normal(filters).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=groups, pads=[window // 2] * 4)
    graph = helper.make_graph(
        [node], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, height, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name):
    case = CASES[name]
    given = model(*case)
    x = np.random.default_rng(1).standard_normal((1, case[0], *case[2:4])).astype(np.float32)
    (want,) = ReferenceEvaluator(given).run(None, {"x": x})
    state, run = compile_state(given, threads=1, cache=False, tuned=False)
    assert "contraction" in {s.rule for s in state.schedules.values()}
    for threads in (1, 2, 3):
        (y,) = Executable(run.package, threads)(x)
        np.testing.assert_allclose(y, want, atol=2e-6 * np.abs(want).max())


def tiled(apart):
    """Groups of 48 columns that lie `apart`, in tiles of 32 in tiles of 16: the second tile of 32 ends at 48. Returns
    the schedule and the loop over groups and tiles of 32."""
    s = Schedule(
        te.from_nest(f"""
def k(x: f32[192], y: out(f32[192])):
    for g in serial(4):
        for c in serial(48):
            s0: y[g * {apart} + c] = exp(x[g * 48 + c])
""")
    )
    outer, inner = s.split("c", 32)
    s.split(inner, 16)
    return s, s.fuse("g", outer)


def test_tiles_inside_of_partial_tiles_write_elements_of_their_own():
    s, at = tiled(48)
    s.parallel(at)


def test_tiles_that_do_overlap_are_refused():
    s, at = tiled(40)
    with pytest.raises(ScheduleError, match="cannot be shown to write different elements"):
        s.parallel(at)
