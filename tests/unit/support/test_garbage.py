"""Garbage is collected rarely during a compilation, afterwards as before; what the compiler makes of a kernel goes
without it."""

import gc

import tilewright as tw
from tilewright.schedule.nest import Nest, Stmt
from tilewright.schedule.schedule import Schedule
from tilewright.support.garbage import OBJECTS, rarely_collected

MODEL = """
func.func @main(%x: tensor<6x16xf32> {tw.name = "x"}, %w: tensor<16x24xf32> {tw.name = "w"})
    -> (tensor<6x24xf32> {tw.name = "y"}) {
  %0 = "tw.matmul"(%x, %w) : (tensor<6x16xf32>, tensor<16x24xf32>) -> tensor<6x24xf32>
  %1 = "tw.softmax"(%0) {axis = 1 : i64} : (tensor<6x24xf32>) -> tensor<6x24xf32>
  return %1 : tensor<6x24xf32>
}
"""


def test_collected_rarely_inside_and_as_often_as_before_afterwards():
    before = gc.get_threshold()
    try:
        for often in (700, OBJECTS, 0):  # 0: never
            gc.set_threshold(often, 10, 10)
            with rarely_collected():
                assert gc.get_threshold()[0] == (OBJECTS if often else 0)
                with rarely_collected():
                    pass
                assert gc.get_threshold()[0] == (OBJECTS if often else 0)
            assert gc.get_threshold() == (often, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_loop_nests_go_when_nobody_refers_to_them():
    flags, enabled = gc.get_debug(), gc.isenabled()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        tw.compile(MODEL, threads=1, tuned=False, jobs=1, cache=False, stop_after="emit")
        gc.collect()
        left = [x for x in gc.garbage if isinstance(x, (Stmt, Nest, Schedule))]
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
        if enabled:
            gc.enable()
    assert not left
