"""Running sums along an axis: lines are independent; lanes run across lines where those lie side by side in memory."""

from __future__ import annotations

from math import prod

from ....support.dtypes import wide
from ....support.sizes import at_most
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, Stmt, Store, loop, seq, store
from .. import direct
from .nests import Access, add, divide, mul, unflatten, vector_loop


@direct("cumprod", "cumsum", writes_once=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.cumsum`` and ``tw.cumprod``, computed in f32 for halves."""
    a = Access(kernel)
    x, out = a.operand(0), a.opaque.results[0]
    shape = a.shape(x)
    if prod(shape) == 0:
        return seq()
    attributes = a.opaque.attributes
    axis = attributes["axis"] % len(shape)
    dtype = wide(a.dtype(x))
    product = a.opaque.mnemonic == "cumprod"
    zero = Const(float(product) if dtype in ("f32", "f64") else int(product), dtype)
    size = shape[axis]
    step: Expr = Var("j")
    if attributes["reverse"]:
        step = size - 1 - step

    def advance(total: Load, at: tuple[Expr, ...]) -> Store:
        """Add an element to the running sum, and write the sum with or without it."""
        value = (mul if product else add)(total, a.read(x, at))
        result = a.narrow(out, total if attributes["exclusive"] else value)
        return Store((Target(out, at, result), Target(total.buffer, total.indices, value)), "scan")

    if axis == len(shape) - 1:
        lead = shape[:-1]
        lines = divide(prod(lead), prod(shape), machine)
        total = Load("total", (), dtype)
        at = (*unflatten(lines.first + Var("line"), lead), step)
        body = seq(store("total", (), zero, "start"), loop("j", size, advance(total, at)))
        return lines.parallel(loop("line", lines.extent, Alloc(Buffer("total", (), dtype, "register"), body)))
    lead, width = (
        (*shape[:axis], *shape[axis + 1 : -1]),
        min(lanes(machine, dtype), 1 << max(shape[-1] - 1, 0).bit_length()),
    )
    blocks = -(-shape[-1] // width)
    lines = divide(prod(lead) * blocks, prod(shape), machine)
    line = lines.first + Var("line")
    outer = unflatten(line if at_most(blocks, 1) else line // blocks, lead)
    block = line % blocks
    total = Load("total", (Var("c_l"),), dtype)

    def lane_loop(body: Stmt) -> Stmt:
        left = shape[-1] - block * width
        extent = Op("minsi", (Const(width, "index"), left), "index") if shape[-1] % width else width
        return vector_loop("c", extent, width, width, lambda _: body) if width > 1 else loop("c_l", 1, body)

    at = (*outer[:axis], step, *outer[axis:], block * width + Var("c_l"))
    body = seq(lane_loop(store("total", (Var("c_l"),), zero, "start")), loop("j", size, lane_loop(advance(total, at))))
    return lines.parallel(loop("line", lines.extent, Alloc(Buffer("total", (width,), dtype, "register"), body)))
