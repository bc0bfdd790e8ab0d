"""Dialect tables: what differs between the C-like languages that loop nests are printed in, one file a language.

Texts with braces are formats. The printer fills in names, types and values; what a table has no entry for is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .helpers import Helper
from .pieces import SplitBindings, element
from .vectors import Vectors

#: how tightly an operator binds; everything else is written in parentheses
AND, TEST, SUM, PRODUCT, ATOM = range(5)


@dataclass(frozen=True)
class Packed:
    """Elements of `bits` bits that share words of 32, because a dialect has no smaller ones in memory: how a value
    comes out of a word (``{word}``, moved by ``{shift}``), and its bits (of ``{value}``). Threads write their parts of
    a word by atomic operations, unless all write whole words.

    >>> Packed(8, "extractBits(i32({word} >> {shift}), 0u, 8u)", "u32({value}) & 255u").load("x", "i", False)
    'extractBits(i32(x[(i) >> 2u] >> ((u32(i) & 3u) * 8u)), 0u, 8u)'
    """

    bits: int
    value: str
    stored: str

    def _place(self, at: str) -> tuple[str, str]:
        several = 32 // self.bits
        return f"({at}) >> {several.bit_length() - 1}u", f"((u32({at}) & {several - 1}u) * {self.bits}u)"

    def word(self, name: str, at: str, atomic: bool, whole: bool = True) -> str:
        """A word; what is read only may be bound in pieces instead of as a `whole`."""
        return f"atomicLoad(&{name}[{at}])" if atomic else element(name, at, whole)

    def load(self, name: str, at: str, atomic: bool, whole: bool = True) -> str:
        """An element's value."""
        word, shift = self._place(at)
        return self.value.format(word=self.word(name, word, atomic, whole), shift=shift)

    def store(self, name: str, at: str, value: str) -> list[str]:
        """The lines that change one element: its bits are cleared, then set."""
        word, shift = self._place(at)
        mask = f"{(1 << self.bits) - 1}u"
        return [
            f"atomicAnd(&{name}[{word}], ~({mask} << {shift}));",
            f"atomicOr(&{name}[{word}], ({self.stored.format(value=value)}) << {shift});",
        ]


@dataclass(frozen=True)
class LowWords(Packed):
    """Elements of 64 bits of which a dialect computes with the low 32: it reads those, and writes the sign behind them.

    >>> LowWords(64, "", "").load("x", "i", False)
    'i32(x[u32(i) * 2u])'
    """

    def load(self, name: str, at: str, atomic: bool, whole: bool = True) -> str:
        return f"i32({self.word(name, f'u32({at}) * 2u', atomic, whole)})"

    def store(self, name: str, at: str, value: str) -> list[str]:
        place = f"u32({at}) * 2u"
        return [
            f"atomicStore(&{name}[{place}], u32({value}));",
            f"atomicStore(&{name}[{place} + 1u], select(0u, 4294967295u, ({value}) < 0));",
        ]


@dataclass(frozen=True)
class Dialect:
    """A dialect of C. Mappings with element types (`support.dtypes.LOOP_TYPES`) as keys lack those that it has not.

    >>> from tilewright.codegen.clike.c99 import C99
    >>> C99.cast("int8_t", "x"), C99.choice.format(test="a < b", yes="a", no="b")
    ('(int8_t)x', '(a < b ? a : b)')
    """

    #: as errors call it
    name: str
    #: what to do about what it lacks
    hint: str = ""

    # ---- types and literals
    #: an element in memory
    types: Mapping[str, str] = field(default_factory=dict)
    #: its integer when bits are to wrap
    unsigned: Mapping[str, str] = field(default_factory=dict)
    #: the element types that parameters may have
    parameters: tuple[str, ...] = ()
    #: a truth value that is no element of a buffer: its type, false and true
    truth: tuple[str, str, str] = ("int", "0", "1")
    #: a literal, and one of bits without sign ("u" and the type)
    literals: Mapping[str, str] = field(default_factory=dict)
    #: the smallest number of a type, where it has no literal of its own
    smallest: Mapping[str, str] = field(default_factory=dict)

    #: element types of parameters that share words in memory
    packed: Mapping[str, Packed] = field(default_factory=dict)
    #: sums of four products of bytes by name: a format of the words `a` and `b`, or a helper's name
    dots: Mapping[str, str] = field(default_factory=dict)
    #: how neighbours are read and written at once; None: one by one
    vectors: Vectors | None = None

    # ---- expressions
    #: casts to types, where they are another text than `casts`; "u" and the type: to the same bits without sign
    conversions: Mapping[str, str] = field(default_factory=dict)
    #: how a number without sign becomes a wider integer, where that is no conversion of the same name
    extended: Mapping[str, str] = field(default_factory=dict)
    casts: str = "({type}){value}"
    choice: str = "({test} ? {yes} : {no})"
    #: whether a choice evaluates only what it chooses
    lazy: bool = True
    #: a number whose bits are all those of a truth value; the lowest bit of an integer; one of two truths but not both
    spread: str = "({type})(-{value})"
    lowest: str = "(int)({value} & 1)"
    differ: str = "({a} ^ {b})"
    #: whether compilers may take it that a number is one: then helpers look at bits
    not_a_number: bool = False
    #: operations -> functions of floats, or formats of their arguments; `suffix` follows a name
    math: Mapping[str, str] = field(default_factory=dict)
    suffix: Mapping[str, str] = field(default_factory=dict)
    #: functions that the printer writes in front of kernels
    helpers: Mapping[str, Helper] = field(default_factory=dict)

    # ---- statements
    constant: str = "const {type} {name} = {value};"
    variable: str = "{type} {name};"
    #: how many of one type are declared in a line
    together: int = 8
    loop: str = "for ({type} {name} = {first}; {name} < {limit}; {step}) {{"
    step: str = "++{name}"
    #: what a parameter that nothing reads needs
    unused: str = "(void){name};"
    #: arrays by scope; those of scope ``local`` have `stack_bytes` at most, larger ones are `arena`, if there is one
    arrays: Mapping[str, str] = field(default_factory=lambda: {"local": "{type} {name}[{size}];"})
    stack_bytes: int = 256
    arena: str = "{type} *const {name} = ({type} *)(void *)({place});"
    #: a line in front of loops of a kind that stay loops
    pragmas: Mapping[str, str] = field(default_factory=dict)
    #: loops bound to an axis: the index of the thread, and of threads among which iterations are shared out; "" where
    #: thread i runs iteration i. Axes without an entry are loops.
    axes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: barriers by scope
    barriers: Mapping[str, str] = field(default_factory=dict)
    #: memories that threads share, by scope: arrays in them are declared in front of all else in a kernel, or where
    #: `shared_outside` says so in front of the kernel
    shared: Mapping[str, str] = field(default_factory=dict)
    shared_outside: bool = False

    # ---- functions
    #: whether parameters are pointers, of which two may be the same
    pointers: bool = True
    #: with `params` one behind the other, separated by `between`, each with `const`, `restrict` or `access`; `block` is
    #: how many threads a block has ("8, 8, 1"), `threads` their product, `shared` the arrays that stand outside
    entry: str = "KERNEL void {name}({params})"
    parameter: str = "{const}{type} *{restrict}{name}"
    #: how parameters that are read are bound; None: as a whole, however large
    pieces: SplitBindings | None = None
    #: the first line of a kernel for each parameter
    begin: str = ""
    between: str = ", "
    scratch: str = "unsigned char *scratch"
    #: a parameter with the size of an open dimension; "" where kernels have a table of sizes (`codegen.gpu.open_sizes`)
    size: str = ""
    #: that table as a parameter, if it is another text than `parameter`
    table: str = ""
    #: the first line of a kernel with scratch memory, where threads of axes each have their own `bytes`
    own_scratch: str = ""
    #: a dialect whose memory has a type: an array for each type in place of `scratch`, and the first line of a kernel
    #: for each, after that with the index of the thread, of `block` threads in a block
    typed_scratch: str = ""
    own_typed_scratch: str = ""
    thread_index: str = ""
    #: words -> lines in front of a text that has the word
    heads: Mapping[str, str] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()

    def cast(self, kind: str, value: str) -> str:
        return self.casts.format(type=kind, value=value)

    def definitions(self, names: Iterable[str]) -> str:
        """Helpers as text, in an order that defines before it uses."""
        used = [n for n in self.helpers if n in set(names)]
        return "\n".join(self.helpers[n].text for n in sorted(used, key=lambda n: bool(self.helpers[n].needs)))

    def file(self, kernels: Iterable[str], helpers: Iterable[str]) -> str:
        """A text that is complete: what it needs in front, helpers, kernels."""
        body = "\n".join(t for t in (self.definitions(helpers), *kernels) if t)
        heads = [line for word, line in self.heads.items() if re.search(rf"\b{word}\b", body)]
        return "\n".join([*heads, body])
