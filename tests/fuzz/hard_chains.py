"""Random chains of two to six ONNX operators on hard numbers: how they are drawn, computed and packed into models.

Compiling is what costs: many chains go into one model, each with an output of its own, and share its inputs, two
tensors of each element type that are full of hard numbers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hard_reference import REFERENCES, SAMPLES, Choices, Rules, Value
from onnx import helper
from support.hard_numbers import BF16, DTYPES, draw, hard, is_float
from support.onnx_models import model, node, value

MODES = ("static", "folded", "mixed", "dynamic", "open")
#: rows and columns of the inputs: less than a vector, vectors with and without a rest
SHAPES = ((3, 37), (2, 64), (5, 7), (1, 16), (4, 19), (1, 1), (8, 8), (3, 21), (2, 300), (130, 3))
OPSET = 20
F32, I64, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(bool)


@dataclass(frozen=True)
class Step:
    """One operator: what it reads (names of inputs, constants or earlier steps) and what it makes."""

    op: str
    inputs: tuple[str, ...]
    name: str
    dtype: np.dtype
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chain:
    """Steps, the last of which makes the output, and the constants among what they read."""

    seed: str
    steps: tuple[Step, ...]
    constants: Mapping[str, np.ndarray]

    def __str__(self) -> str:
        seen: dict[str, str] = {}
        for s in self.steps:
            args = [seen.get(i) or (_short(self.constants[i]) if i in self.constants else i) for i in s.inputs]
            extra = "".join(f", {k}={v}" for k, v in s.attributes.items() if k not in ("op", "dtype"))
            made = f":{s.dtype}" if s.op == "Cast" else ""
            seen[s.name] = f"{s.op}{made}({', '.join(args)}{extra})"
        return seen[self.steps[-1].name]

    @property
    def reads(self) -> set[str]:
        """The inputs of the model that it needs."""
        made = {s.name for s in self.steps} | set(self.constants)
        return {i for s in self.steps for i in s.inputs} - made

    @property
    def types(self) -> set[str]:
        """The element types that it computes in."""
        return {s.dtype.name for s in self.steps}

    def values(self, feed: Mapping[str, np.ndarray], rules: Rules, count: int = SAMPLES) -> dict[str, Value]:
        """The right values of all steps."""
        choices = Choices(np.random.default_rng(hash_of(self.seed)), rules, count)
        given = {n: feed[n] for n in self.reads} | dict(self.constants)
        found = {n: Value.of(a) for n, a in given.items()}
        if rules.flushes:
            for v in found.values():
                v.samples = choices.flushed(v.samples, made=False)
        with np.errstate(all="ignore"):
            for s in self.steps:
                made = REFERENCES[s.op](choices, *(found[i] for i in s.inputs), op=s.op, dtype=s.dtype, **s.attributes)
                if rules.flushes:
                    made.samples = choices.flushed(made.samples)
                found[s.name] = made
        return found

    def value(self, feed: Mapping[str, np.ndarray], rules: Rules, count: int = SAMPLES) -> Value:
        return self.values(feed, rules, count)[self.steps[-1].name]


def hash_of(text: str) -> int:
    """Of the text alone, the same in every process."""
    return random.Random(text).getrandbits(60)


def _short(a: np.ndarray) -> str:
    return f"{a.dtype}:{a.item()!r}" if a.size == 1 else f"const{list(a.shape)}"


# ---- drawing --------------------------------------------------------------------------------------------------------

FLOAT_UNARY = (
    "Neg", "Abs", "Floor", "Ceil", "Round", "Relu", "Sqrt", "Reciprocal", "Sign", "Identity", "Exp", "Log",
    "Tanh", "Erf", "Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh",
    "Atanh", "Softplus", "Softsign", "Elu", "Mish", "LeakyRelu", "HardSigmoid",
)  # fmt: skip
#: drawn more often than functions: what a compiler likes to rewrite
FLOAT_EXACT = ("Neg", "Abs", "Floor", "Ceil", "Round", "Relu", "Sqrt", "Reciprocal", "Sign", "Identity")
FLOAT_BINARY = (
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "PRelu",
)  # fmt: skip
WHOLE = (
    "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Add",
    "Sub", "Mul", "Abs", "Sign",
)  # fmt: skip
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceL2", "ArgMax",
    "ArgMin", "CumSum", "Softmax", "LogSoftmax",
)  # fmt: skip
PLACES = ["Transpose", "Reverse", "Roll", "Halves", "Tile", "Flatten", "Concat", "Pad"]


class Drawing:
    """A chain as it grows: its present value is `name`, of `dtype`; `base` says that it has the inputs' shape."""

    def __init__(self, seed: str, types: Sequence[str], shape: tuple[int, int], mode: str) -> None:
        self.rng, self.seed, self.mode = random.Random(seed), seed, mode
        self.numbers = np.random.default_rng(hash_of(seed))
        self.types = [DTYPES[t] for t in types]
        self.shape, self.fixed = shape, mode not in ("dynamic", "open")
        self.steps: list[Step] = []
        self.constants: dict[str, np.ndarray] = {}
        self.dtype, self.base = self.rng.choice(self.types), True
        self.seen: list[tuple[str, np.dtype]] = []
        self.name = self.input(self.dtype)

    def input(self, dtype: np.dtype) -> str:
        name = f"{dtype.name}_{self.rng.choice('ab')}"
        if self.mode == "folded" or (self.mode == "mixed" and self.rng.random() < 0.4):
            return self.constant(draw(self.numbers, dtype, self.shape))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"{self.seed}_k{len(self.constants)}"
        self.constants[name] = array
        return name

    def number(self, dtype: np.dtype | None = None) -> np.ndarray:
        """A number of a type, mostly a hard one; some are those that rewrites look for."""
        dtype = dtype or self.dtype
        if dtype.kind != "b" and self.rng.random() < 0.2:
            plain = [0, 1, 2] if dtype.kind == "u" else [0, 1, -1, 2, *([-0.0, 0.5] if is_float(dtype) else [])]
            return np.array(self.rng.choice(plain)).astype(dtype)
        return draw(self.numbers, dtype, (), tame=0.2).reshape(())

    def operand(self, dtype: np.dtype | None = None) -> str:
        """Another value: an input, a constant, or one from before."""
        dtype, pick = dtype or self.dtype, self.rng.random()
        if not self.base:
            return self.name if pick < 0.2 and dtype == self.dtype else self.constant(self.number(dtype))
        before = [n for n, t in self.seen if t == dtype]
        if pick < 0.4:
            return self.input(dtype)
        if pick < 0.6 and before:
            return self.rng.choice(before)
        if pick < 0.85 or not self.fixed:
            return self.constant(self.number(dtype))
        shape = self.rng.choice([self.shape, (self.shape[1],), (self.shape[0], 1)])
        return self.constant(draw(self.numbers, dtype, shape))

    def add(self, op: str, *inputs: str, dtype: np.dtype | None = None, **attributes: Any) -> None:
        if self.base:
            self.seen.append((self.name, self.dtype))
        self.dtype = dtype or self.dtype
        made = f"{self.seed}_{len(self.steps)}"
        self.steps.append(Step(op, inputs, made, self.dtype, attributes))
        self.name = made

    # -- one step of each kind; False if it is not possible here --

    def step(self) -> None:
        d, kinds = self.dtype, [self.cast]
        if d.kind == "b":
            kinds = [self.cast, self.where, self.logic]
        elif is_float(d):
            kinds += [self.exact, self.exact, self.unary, self.binary, self.binary, self.binary, self.limit]
            kinds += [self.choose, self.along_axis, self.test, self.product]
        else:
            kinds += [self.whole, self.whole, self.whole, self.choose, self.test]
            kinds += [self.along_axis] if d.itemsize >= 4 else []
        kinds += [self.idiom] * 2 if d.kind != "b" else []
        if self.base:
            kinds += [self.place]
        while not self.rng.choice(kinds)():
            pass

    def exact(self) -> bool:
        self.add(self.rng.choice(FLOAT_EXACT), self.name)
        return True

    def unary(self) -> bool:
        op = self.rng.choice(FLOAT_UNARY)
        if op in ("LeakyRelu", "HardSigmoid"):  # slopes that every type has
            more = {"alpha": self.rng.choice([0.25, 0.5])} | ({"beta": 0.5} if op == "HardSigmoid" else {})
            self.add(op, self.name, **more)
        else:
            self.add(op, self.name)
        return True

    def binary(self) -> bool:
        op = self.rng.choice(FLOAT_BINARY)
        pair = [self.name, self.operand()]
        if op not in ("PRelu", "Pow") and self.rng.random() < 0.3:
            pair.reverse()
        if op == "PRelu" and pair[1] not in self.constants:
            return False
        self.add(op, *pair, **({"fmod": 1} if op == "Mod" else {}))
        return True

    def limit(self) -> bool:
        self.add("Clip", self.name, self.constant(self.number()), self.constant(self.number()))
        return True

    def choose(self) -> bool:
        """A comparison and what it selects."""
        x, dtype = self.name, self.dtype
        self.add(self.rng.choice(COMPARISONS), *self.rng.sample([x, self.operand()], 2), dtype=BOOL)
        self.add("Where", self.name, *self.rng.sample([x, self.operand(dtype)], 2), dtype=dtype)
        return True

    def test(self) -> bool:
        """A comparison, or a question about a float, whose result stays a truth value."""
        if is_float(self.dtype) and self.dtype.itemsize >= 4 and self.rng.random() < 0.4:
            self.add(self.rng.choice(["IsNaN", "IsInf"]), self.name, dtype=BOOL)
        else:
            self.add(self.rng.choice(COMPARISONS), *self.rng.sample([self.name, self.operand()], 2), dtype=BOOL)
        return True

    def where(self) -> bool:
        dtype = self.rng.choice(self.types)
        self.add("Where", self.name, self.operand(dtype), self.operand(dtype), dtype=dtype)
        return True

    def logic(self) -> bool:
        op = self.rng.choice(["Not", "And", "Or", "Xor"])
        self.add(op, self.name, *([] if op == "Not" else [self.operand()]))
        return True

    def cast(self) -> bool:
        others = [t for t in self.types if t != self.dtype]
        if not others:
            return False
        to = self.rng.choice(others)
        self.add("Cast", self.name, dtype=to)
        return True

    def whole(self) -> bool:
        """Integers."""
        d = self.dtype
        op = self.rng.choice([*WHOLE, *(["BitShift"] * 2 if d.kind == "u" else ["Neg"])])
        if op in ("BitwiseNot", "Abs", "Sign", "Neg"):
            self.add(op, self.name)
        elif op == "BitShift":
            by = self.constant(np.array(self.rng.randrange(8 * d.itemsize), d))
            self.add(op, self.name, by, direction=self.rng.choice(["LEFT", "RIGHT"]))
        else:
            pair = [self.name, self.operand()]
            if self.rng.random() < 0.3:
                pair.reverse()
            self.add(op, *pair, **({"fmod": int(self.rng.random() < 0.5)} if op == "Mod" else {}))
        return True

    def along_axis(self) -> bool:
        op, axis, base = self.rng.choice(REDUCTIONS), self.rng.choice([-1, 0]), self.base
        floats = is_float(self.dtype)
        if not floats and op not in ("ReduceSum", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "CumSum"):
            return False
        if op == "CumSum" and (self.dtype.itemsize < 4 or self.dtype.kind == "u"):
            return False
        x = self.name
        self.add(op, x, dtype=I64 if op.startswith("Arg") else None, axis=axis)
        if op not in ("CumSum", "Softmax", "LogSoftmax"):  # one number a row, beside the row again
            if op.startswith("Arg"):
                self.base = False
            elif base:
                self.seen.pop()
                self.add(self.rng.choice(["Add", "Sub", "Mul", "Max", "Min"]), x, self.name)
                self.seen.pop()
        return True

    def product(self) -> bool:
        """By a constant matrix."""
        if not self.base or not self.fixed:
            return False
        columns = self.rng.choice([1, 3, 8, 17])
        matrix = (self.numbers.integers(-8, 9, (self.shape[1], columns)) / 4).astype(self.dtype)
        self.add("MatMul", self.name, self.constant(matrix))
        self.base = False
        return True

    def idiom(self) -> bool:
        """What rewrites look for: the same again, its inverse, a value with itself."""
        d, x, floats = self.dtype, self.name, is_float(self.dtype)
        c = self.constant(self.number()) if self.rng.random() < 0.7 else self.operand()
        e = c if self.rng.random() < 0.4 else self.constant(self.number())
        whole = d.kind == "i" or floats
        pairs = [
            ("Add", "Sub"),
            ("Add", "Add"),
            ("Sub", "Add"),
            ("Mul", "Mul"),
            ("Max", "Min"),
            ("Min", "Max"),
            ("Max", "Max"),
        ]
        pairs += (
            [("Mul", "Div"), ("Div", "Mul"), ("Mul", "Add"), ("Add", "Mul"), ("Div", "Div"), ("Min", "Min")]
            if floats
            else []
        )
        kind = self.rng.randrange(6)
        if kind <= 1:
            first, second = self.rng.choice(pairs)
            self.add(first, x, c)
            self.add(second, self.name, e)
        elif kind == 2:
            self.add(self.rng.choice(["Sub", "Add", "Mul", "Max", *(["Div"] if floats else [])]), x, x)
        elif kind == 3 and whole:
            unary = self.rng.choice(["Neg", "Abs", "Sign", *((*FLOAT_EXACT, "Exp", "Log") if floats else ())])
            other = self.rng.choice(
                {"Exp": ["Log"], "Log": ["Exp"], "Sqrt": ["Reciprocal", "Sqrt"]}.get(unary, [unary, "Neg"])
            )
            self.add(unary, x)
            self.add(other, self.name)
        elif kind == 4 and floats:
            power = self.rng.choice([0.5, -0.5, -1.0, 2.0, 3.0, 1.0, 0.0, -2.0, 4.0, 1.5])
            self.add("Pow", x, self.constant(np.array(power).astype(d)))
        else:
            others = [t for t in self.types if t != d and t.kind != "b"]
            if not others:
                return False
            self.add("Cast", x, dtype=self.rng.choice(others))
            self.add("Cast", self.name, dtype=self.rng.choice(self.types))
        return True

    def place(self) -> bool:
        op, axis = self.rng.choice(PLACES), self.rng.choice([0, 1])
        if op == "Pad":
            if self.dtype.kind == "b":
                return False
            self.add(op, self.name, self.constant(self.number()), pads=(self.rng.randrange(2), self.rng.randrange(3)))
        elif op == "Concat":
            self.add(op, self.name, self.input(self.dtype), axis=axis)
        else:
            self.add(op, self.name, axis=axis)
        self.base = op in ("Reverse", "Roll")
        return True


def draw_chain(seed: str, types: Sequence[str], shape: tuple[int, int], mode: str) -> Chain:
    """The chain that its seed, the types, the shape and the mode decide."""
    d = Drawing(seed, types, shape, mode)
    wanted = d.rng.randint(2, 6)
    while len(d.steps) < wanted:
        d.step()
    return pruned(Chain(seed, tuple(d.steps), d.constants))


def pruned(chain: Chain) -> Chain:
    """Without steps and constants that the output does not need."""
    needed, kept = {chain.steps[-1].name}, []
    for s in reversed(chain.steps):
        if s.name in needed:
            kept.append(s)
            needed |= set(s.inputs)
    return replace(chain, steps=tuple(kept[::-1]), constants={n: a for n, a in chain.constants.items() if n in needed})


# ---- models ---------------------------------------------------------------------------------------------------------


def element(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


def nodes_of(s: Step, constants: dict[str, np.ndarray]) -> list:
    """A step as nodes of ONNX."""
    a, x = s.attributes, " ".join(s.inputs)

    def whole(tag: str, numbers: Any) -> str:
        constants[f"{s.name}_{tag}"] = np.array(numbers, np.int64)
        return f"{s.name}_{tag}"

    if s.op == "Cast":
        return [node("Cast", x, s.name, to=element(s.dtype))]
    if s.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceL2"):
        return [node(s.op, f"{x} {whole('axes', [a['axis']])}", s.name, keepdims=1)]
    if s.op in ("ArgMax", "ArgMin"):
        return [node(s.op, x, s.name, axis=a["axis"], keepdims=1)]
    if s.op == "CumSum":
        return [node(s.op, f"{x} {whole('axis', a['axis'])}", s.name)]
    if s.op in ("Softmax", "LogSoftmax", "Concat"):
        return [node(s.op, x, s.name, axis=a["axis"])]
    if s.op in ("Reverse", "Halves"):
        start, stop, step = (-1, -(2**31), -1) if s.op == "Reverse" else (0, 2**31, 2)
        parts = [whole(t, [v]) for t, v in (("from", start), ("to", stop), ("axis", a["axis"]), ("step", step))]
        return [node("Slice", f"{x} {' '.join(parts)}", s.name)]
    if s.op == "Roll":
        one, zero, end, axis = (whole(t, [v]) for t, v in (("1", 1), ("0", 0), ("n", 2**31), ("axis", a["axis"])))
        parts = [node("Slice", f"{x} {one} {end} {axis}", f"{s.name}_l")]
        parts.append(node("Slice", f"{x} {zero} {one} {axis}", f"{s.name}_r"))
        return [*parts, node("Concat", f"{s.name}_l {s.name}_r", s.name, axis=a["axis"])]
    if s.op == "Tile":
        return [node("Tile", f"{x} {whole('by', [1, 2])}", s.name)]
    if s.op == "Flatten":
        return [node("Reshape", f"{x} {whole('shape', [1, -1])}", s.name)]
    if s.op == "Transpose":
        return [node("Transpose", x, s.name, perm=[1, 0])]
    if s.op == "Pad":
        start, number = s.inputs
        return [node("Pad", f"{start} {whole('pads', [*a['pads'], 0, 0])} {number}", s.name)]
    return [node(s.op, x, s.name, **a)]


def pack(chains: Sequence[Chain], shape: tuple[Any, Any]):
    """One ONNX model of many chains; `shape` is that of its inputs, sizes or names."""
    constants: dict[str, np.ndarray] = {}
    nodes, outputs = [], []
    for c in chains:
        constants.update(c.constants)
        for s in c.steps:
            nodes += nodes_of(s, constants)
        outputs.append(value(c.steps[-1].name, None, element(c.steps[-1].dtype)))
    read = sorted({n for c in chains for n in c.reads})
    inputs = [value(n, shape, element(_type_of(n))) for n in read]
    return model(nodes, inputs, outputs, constants, opset=OPSET)


def _type_of(name: str) -> np.dtype:
    text = name.rsplit("_", 1)[0]
    return BF16 if text == "bfloat16" else np.dtype(text)


def feed_of(names: Sequence[str], shape: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
    """Hard numbers for the inputs of a model; each array depends on its name and the seed alone."""
    return {n: draw(np.random.default_rng([seed, hash_of(n)]), _type_of(n), shape, tame=0.15) for n in names}


__all__ = ["MODES", "SHAPES", "Chain", "Step", "draw_chain", "feed_of", "hard", "pack", "pruned"]
