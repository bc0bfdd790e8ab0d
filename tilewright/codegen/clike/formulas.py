"""Prints symbolic size expressions (`support.formulas`) as C: ``((d1 + 7)//8)*d0`` becomes ``(seq + 7) / 8 * batch``.

C divides toward zero and computes in a type of so many bits. So every part is written with the range of what it can be:
a quotient that may be negative is left to a helper, and whoever asks sees the largest number that is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ...support.dims import Dim
from ...support.formulas import FormulaNode, read
from .c99 import KEYWORDS, MATH
from .dialect import ATOM, PRODUCT, SUM
from .names import distinct, identifier, taken_by_c

#: what generated code and the headers that it includes call something
_TAKEN = frozenset(
    (*KEYWORDS, *MATH.values(), *(f"{m}f" for m in MATH.values()), "arena", "arena_size", "base", "memcpy")
)
_OURS = re.compile(r"(in|out|weights|v|size|place|bytes)\d*|tw_\w*|u?int\w*_t|size_t|KERNEL|NULL|main|shape|memory")


@dataclass(frozen=True)
class Written:
    """C text, how tightly its operator binds, its smallest and its largest value; the largest magnitude of a part; the
    dimensions and the helpers in it, and whether it is more than sums and products."""

    text: str
    level: int
    low: int
    high: int
    peak: int
    names: frozenset[str] = frozenset()
    helpers: frozenset[str] = frozenset()
    divides: bool = False

    def within(self, level: int) -> str:
        """The text as an operand of what binds so tightly."""
        return f"({self.text})" if self.level < level else self.text


def dim_names(dims: Iterable[Dim]) -> dict[str, str]:
    """The C names of dimensions, by their own.

    >>> dim_names([Dim("time"), Dim("int"), Dim("in0")])
    {'time': 'time', 'int': 'int_size', 'in0': 'in0_size'}
    """
    own = [d.name for d in dims]
    plain = [n if n in KEYWORDS else identifier(n) for n in own]
    free = [f"{n}_size" if n in _TAKEN or taken_by_c(n) or _OURS.fullmatch(n) else n for n in plain]
    return dict(zip(own, distinct(free, _TAKEN), strict=True))


def c_formula(formula: str | int, dims: Sequence[Dim], bits: int = 32) -> Written:
    """A formula of these dimensions in C, computed in integers of so many bits (dimensions have 32).

    >>> time = Dim("time", 8, 128)
    >>> c_formula("160*d0 + 64", [time]).text, c_formula("((d0 + 1)//2)", [time]).high
    ('160 * time + 64', 64)
    >>> c_formula("4*(d0//4)", [Dim("time", 4, 64, 4)]).text
    'time'
    """
    return _FormulaPrinter(dims, bits).write(read(str(formula)))


class _FormulaPrinter:
    def __init__(self, dims: Sequence[Dim], bits: int) -> None:
        self.dims = list(dims)
        self.names = dim_names(dims)
        self.bits = bits

    def write(self, node: FormulaNode) -> Written:
        if node.op == "number":
            n = node.value
            return Written(str(n), ATOM if n >= 0 else SUM, n, n, abs(n))
        if node.op == "dim":
            d = self.dims[node.value]
            name = self.names[d.name]
            low, high = -(-d.low // d.divisor) * d.divisor, d.high // d.divisor * d.divisor
            text = name if self.bits == 32 else f"(int{self.bits}_t){name}"
            return Written(text, ATOM, low, high, high, frozenset((name,)))
        if node.op == "neg":
            x = self.write(node.args[0])
            return replace(x, text=f"-{x.within(ATOM)}", level=SUM, low=-x.high, high=-x.low)
        if node.op == "*":
            return self.product(node)
        left, right = node.args
        if node.op == "+" and _factors(left)[0].op == "neg":  # -8*n + m is m - 8*n
            node = FormulaNode("-", (right, FormulaNode("*", (FormulaNode("number", (), -1), left))))
        a, b = map(self.write, node.args)
        if node.op in ("min", "max"):
            return self.extremum(min if node.op == "min" else max, a, b)
        if node.op == "//":
            return self.quotient(a, b)
        sign, low, high = ("+", b.low, b.high) if node.op == "+" else ("-", -b.high, -b.low)
        return _made(f"{a.within(SUM)} {sign} {b.within(PRODUCT)}", SUM, a.low + low, a.high + high, a, b)

    def product(self, node: FormulaNode) -> Written:
        """The numbers among the factors first; ``8 * (seq//8)`` is ``seq`` where 8 divides it."""
        number, factors = 1, []
        for f in _factors(node):
            if f.op == "neg":
                number, f = -number, f.args[0]
            if f.op == "number":
                number *= f.value
            else:
                factors.append(f)
        for i, f in enumerate(factors):
            if f.op == "//" and f.args[0].op == "dim" and f.args[1].op == "number":
                n = f.args[1].value
                if n and number % n == 0 and self.dims[f.args[0].value].divisor % n == 0:
                    number, factors[i] = number // n, f.args[0]
        parts = [self.write(f) for f in factors]
        if number != 1 or not parts:
            parts.insert(0, self.write(FormulaNode("number", (), number)))
        whole = parts[0]
        for p in parts[1:]:
            ends = [x * y for x, y in product((whole.low, whole.high), (p.low, p.high))]
            whole = _made(f"{whole.within(PRODUCT)} * {p.within(ATOM)}", PRODUCT, min(ends), max(ends), whole, p)
        return whole

    def quotient(self, a: Written, b: Written) -> Written:
        """A divisor is positive: `support.sizes` makes no other quotients."""
        ends = [x // y for x, y in product((a.low, a.high), (max(b.low, 1), max(b.high, 1)))]
        if a.low >= 0:
            made = _made(f"{a.within(PRODUCT)} / {b.within(ATOM)}", PRODUCT, min(ends), max(ends), a, b)
        else:
            made = self.helper("floordivsi", min(ends), max(ends), a, b)
        return replace(made, divides=True)

    def extremum(self, pick: Callable[[int, int], int], a: Written, b: Written) -> Written:
        made = self.helper(pick.__name__, pick(a.low, b.low), pick(a.high, b.high), a, b)
        return replace(made, divides=True)

    def helper(self, name: str, low: int, high: int, a: Written, b: Written) -> Written:
        name = f"{name}_i{self.bits}"
        made = _made(f"tw_{name}({a.text}, {b.text})", ATOM, low, high, a, b)
        return replace(made, helpers=made.helpers | {name})


def _factors(node: FormulaNode) -> list[FormulaNode]:
    return [f for x in node.args for f in _factors(x)] if node.op == "*" else [node]


def _made(text: str, level: int, low: int, high: int, a: Written, b: Written) -> Written:
    peak = max(a.peak, b.peak, abs(low), abs(high))
    return Written(text, level, low, high, peak, a.names | b.names, a.helpers | b.helpers, a.divides or b.divides)


__all__ = ["Written", "c_formula", "dim_names"]
