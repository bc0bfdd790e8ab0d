"""Stable names for kernels: `kernel_key` of what a kernel computes, `form_key` of the same without its sizes.

Both are digests of the structure (parameters, stages, expressions), not of a printed form, so they stay the same when
printing changes, whatever the kernel is called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..graph.choose_winograd import Layer
from ..schedule.nest import Nest
from ..schedule.text import format_nest
from ..tensor.expr import Const, Expr, Load, Op, Var, children
from ..tensor.kernel import Kernel


@dataclass(frozen=True)
class Key:
    """`kernel`: digest of the kernel with all sizes; `form`: without sizes and constants; `extents`: the sizes, in
    order."""

    kernel: str
    form: str
    extents: tuple[int, ...]


def kernel_key(kernel: Kernel) -> Key:
    """The key of a kernel; kernels that differ only in their name have the same.

    >>> from tilewright import te
    >>> def double(n):
    ...     x = te.placeholder((n,), "x")
    ...     return te.kernel(te.compute((n,), lambda i: x[i] + x[i]))
    >>> kernel_key(double(8)).kernel == kernel_key(double(8)).kernel
    True
    >>> kernel_key(double(8)).kernel == kernel_key(double(9)).kernel
    False
    >>> kernel_key(double(8)).form == kernel_key(double(9)).form
    True
    """
    return Key(_digest(_parts(kernel, str)), _digest(_parts(kernel, lambda size: "?")), _extents(kernel))


def layer_key(layer: Layer) -> Key:
    """The key of a convolution whose way is to be chosen.

    >>> layer_key(Layer(1, 7, 7, 512, 512)).extents
    (1, 7, 7, 512, 512)
    """
    return Key(_digest(["way", str(layer)]), _digest(["way"]), layer.sizes)


_MADE = re.compile(r"^ *(?:for (\w+) in|(\w+) = |with .* as (\w+):)", re.MULTILINE)


def nest_digest(nest: Nest) -> str:
    """Digest of a nest whatever it and its loops are called: equal for decisions that lead to the same code."""
    _, _, rest = format_nest(nest).partition("(")
    names = [next(n for n in found if n) for found in _MADE.findall(rest)]
    numbers = {n: f"v{i}" for i, n in enumerate(dict.fromkeys(names))}
    return _digest([re.sub(r"\b[A-Za-z_]\w*\b", lambda m: numbers.get(m.group(), m.group()), rest)])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


class _Names(dict[str, int]):
    """Numbers for names, in order of appearance: a key does not depend on what buffers and loops are called."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def _parts(kernel: Kernel, size: Callable[[float], str]) -> list[str]:
    lines, names = [], _Names()
    for b in (*kernel.params, *kernel.temporaries):
        role = "out" if b.name in kernel.outputs else "constant" if b.name in kernel.constants else ""
        lines.append(f"{names[b.name]} {b.dtype} [{', '.join(size(n) for n in b.shape)}] {role}")
    memo: dict[int, str] = {}
    for s in kernel.stages:
        lines.append(f"{[(names[v], size(n)) for v, n in s.dims]} {[names[v] for v in s.reduction]}")
        for t in s.targets:
            init = "" if t.init is None else _expr(t.init, size, names, memo)
            index = [_expr(i, size, names, memo) for i in t.indices]
            lines.append(f"{names[t.buffer]} {index} {_expr(t.value, size, names, memo)} {init}")
    if kernel.opaque is not None:
        o = replace(kernel.opaque, attributes={}, operands=(), results=())
        attributes = {
            k: size(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v
            for k, v in kernel.opaque.attributes.items()
        }
        places = [None if b is None else names[b] for b in (*kernel.opaque.operands, *kernel.opaque.results)]
        lines.append(f"{o} {sorted(attributes.items())} {places}")
    return lines


def _expr(e: Expr, size: Callable[[float], str], names: _Names, memo: dict[int, str]) -> str:
    """A digest of an expression; shared parts are visited once."""
    known = memo.get(id(e))
    if known is not None:
        return known
    below = [_expr(c, size, names, memo) for c in children(e)]
    if isinstance(e, Var):
        text = f"var {names[e.name]}"
    elif isinstance(e, Const):
        text = f"const {e.dtype} {size(e.value)}"
    elif isinstance(e, Load):
        text = f"load {names[e.buffer]} {e.dtype}"
    else:
        assert isinstance(e, Op)
        text = f"{e.op} {e.dtype}"
    memo[id(e)] = _digest([text, *below])
    return memo[id(e)]


def _extents(kernel: Kernel) -> tuple[int, ...]:
    sizes = [n for s in kernel.stages for _, n in s.dims]
    return tuple(sizes) or tuple(n for p in kernel.params for n in p.shape)


__all__ = ["Key", "kernel_key", "layer_key", "nest_digest"]
