"""Primitives for copies by an engine of the machine (TMA), and for producers that do nothing else than begin them."""

from __future__ import annotations

from dataclasses import replace

from ..nest import AsyncCopy, Stmt, Wait, path_to, seq, stores, transform
from ..producers import PRODUCER
from .state import ScheduleError, State, primitive


class BulkPrimitives(State):
    """Copies of boxes by an engine."""

    @primitive
    def bulk(self, block: str) -> None:
        """Let an engine of the machine (`machine.BulkCopy`) do the copies of a block: one thread begins each, and all
        that share the memory wait for it.

        The block copies a box of a parameter, with zeros beyond the parameter (``guard``), into memory that threads
        share. If it is no asynchronous copy yet, it becomes one that is waited for at once (`pipeline` then lets it run
        ahead). Refused if the machine has no such engine, or for what it cannot copy: see `schedule/bulk.py`.

        >>> from tilewright import Schedule, te
        >>> from tilewright.schedule.machine import Axis, BulkCopy, Machine, Memory
        >>> class Gpu(Machine):
        ...     axes = (Axis("block", 256, barriers=("block",)),)
        ...     memories = (Memory("shared", 48 << 10, shared_by=("block",)),)
        ...     bulk = BulkCopy("tensor")
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8, 64], y: out(f32[8, 64])):
        ...     for i in serial(8):
        ...         for j in serial(64):
        ...             s0: y[i, j] = negf(x[i, 63 - j])'''), Gpu())
        >>> s.bulk(s.cache_read("s0", "x", "i", scope="shared"))
        >>> s.barrier("s0_x", "block")
        >>> s.bind("j", "block")
        >>> print(s)
        def k(x: f32[8, 64], y: out(f32[8, 64])):
            for i in serial(8):
                barrier(block)
                x_c = shared(f32[1, 64])
                with bulk_copy(x_c_t):
                    for n_x_c in serial(64):
                        s0_x: x_c[0, n_x_c] = x[i, n_x_c]
                wait(x_c_t)
                for j in block(64):
                    s0: y[i, j] = negf(x_c[0, j * -1 + 63])
        """
        around = path_to(self.body, lambda s: isinstance(s, AsyncCopy) and any(x.block == block for x in stores(s)))
        if around is None:
            root = self._nest_root(block)
            token = self.fresh(f"{self.store(block).targets[0].buffer}_t")
            self._replace(root, seq(AsyncCopy(token, root, bulk=True), Wait(token)))
            return
        copy = around[-1]
        assert isinstance(copy, AsyncCopy)

        def visit(s: Stmt) -> Stmt:
            return replace(s, bulk=True) if isinstance(s, AsyncCopy) and s.token == copy.token else s

        self.body = transform(self.body, visit) or self.body

    @primitive
    def specialize(self, var: str) -> None:
        """Let a producer begin the bulk copies of loop `var`, while the other threads of the axis, the consumers, do
        all else in it (warp specialization). The loop keeps its meaning, and gets a note.

        The loop begins with a barrier, after which nobody uses what its copies overwrite. In place of it the producer
        waits until all others have done an iteration; they wait for copies only. Refused if the loop is another one, or
        if threads write in it what others see. A loop around such a one may be named in its place: the producer then
        runs ahead from one run of the inner loop into the next (`schedule/producers.py`).

        >>> from tilewright import Schedule, te
        >>> from tilewright.schedule.machine import Axis, BulkCopy, Machine, Memory
        >>> class Gpu(Machine):
        ...     axes = (Axis("warp", 32, barriers=("block",)),)
        ...     memories = Memory("register"), Memory("shared", 48 << 10, shared_by=("warp",))
        ...     bulk = BulkCopy("tensor")
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8, 32], y: out(f32[32])):
        ...     for i in serial(32):
        ...         for k in serial(8):
        ...             s0: y[i] = reduce(addf(y[i], x[k, i]), init=f32(0.0), over=(k,))'''), Gpu())
        >>> last = s.cache_write("s0", scope="register")
        >>> s.reorder("k", "i")
        >>> copy = s.cache_read("s0", "x", "k", scope="shared")
        >>> s.bulk(copy)
        >>> s.barrier(copy, "block")
        >>> ahead = s.pipeline("k", copy, stages=3)
        >>> s.bind(s.loops(last)[-1], "warp")
        >>> s.bind("i", "warp")
        >>> s.specialize("k")
        >>> print("\\n".join(str(s).splitlines()[-11:-2]))
            for k in serial(8, notes={'producer': True}):
                barrier(block)
                with bulk_copy(x_c_t):
                    if k + 2 < 8:
                        for n_x_c in serial(32):
                            s0_x: x_c[(k + 2) % 3, 0, n_x_c] = x[k + 2, n_x_c]
                wait(x_c_t, pending=2)
                for i in warp(32):
                    s0: y_c[i] = reduce(addf(y_c[i], x_c[k % 3, 0, i]), init=f32(0.0), over=(k,))
        """
        f = self.loop(var)
        if f.notes:
            raise ScheduleError(f"loop {var} has notes already", stage="schedule")
        self._replace(f, replace(f, notes=((PRODUCER, True),)))


__all__ = ["BulkPrimitives"]
