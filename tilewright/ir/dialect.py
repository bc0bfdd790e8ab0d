"""The `tw` dialect: how an operator is declared, created and verified.

An operator is one subclass of `Operator` whose `infer` signature *is* its declaration: positional parameters are
operands (``None`` default: optional; ``*xs``: variadic), keyword-only parameters are attributes with their default.

    class LeakyRelu(Operator):
        '''x if x > 0 else alpha * x.'''

        @staticmethod
        def infer(x, *, alpha: float = 0.01):          # Types in, Type (or list of Types) out; OpError if wrong
            return x

        @staticmethod
        def reference(x, *, alpha):                    # NumPy arrays in, array (or list) out
            return np.where(x > 0, x, alpha * x)

        @staticmethod
        def lower(b, x, *, alpha):                     # Builder and Tensors in, Tensor (or list) out: linalg
            return b.elementwise(lambda v: b.select(v > 0, v, v * alpha), x)

Attributes may be int, float, bool, str, or tuples of ints or floats, or tuples of strings; ``None`` means absent. In
MLIR text attributes equal to their default are left out:  ``%1 = "tw.leaky_relu"(%0) {alpha = 2.0e-01 : f64} : ...``
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir._mlir_libs import _mlirDialectsIRDL as irdl

from ..support.errors import CompileError, OpError
from ..support.sizes import Size, Undecided, current, decode, too_large, value_at
from .types import Type, signless, type_of

#: A variadic operand (or result) is declared to MLIR as this many variadic groups, because IRDL wants one type within a
#: group: neighbours of equal type share a group. An operation can so have this many changes of type in a row.
GROUPS = 16
#: the operator that ends a region
YIELD = "yield"
#: every operator by its mnemonic (``"leaky_relu"``)
OPERATORS: dict[str, type[Operator]] = {}


@dataclass(frozen=True)
class OperandSpec:
    name: str
    optional: bool = False
    variadic: bool = False


class Operator:
    """Base class of the operators; see the module docstring for the protocol.

    Class attributes an operator may set:

    ``kind``: how fusion treats it when it has no lowering to linalg: ``"linalg"`` (the default: `lower` builds linalg)
    or ``"opaque"`` (kept as a `tw` operator at level 3 and turned into a loop nest by a schedule rule of its own).
    ``pure``: False for operators that CSE and DCE must not touch (random numbers).
    ``multiple``: True if `infer` returns a list of Types (split, top-k), False for a single one.
    ``regions``: how many regions it has (control flow, `ops/control.py`). What it gives follows from what these yield:
    it has `results` in place of `infer`'s value, and no reference or lowering; `graph/cut.py` divides graphs at it.
    ``groups``: changes of type among variadic operands or results that it has room for.
    """

    kind: ClassVar[str] = "linalg"
    pure: ClassVar[bool] = True
    multiple: ClassVar[bool] = False
    regions: ClassVar[int] = 0
    groups: ClassVar[int] = GROUPS
    #: of an operator with regions: the types of its results, from those of its operands and, for each region, of the
    #: region's arguments and of what it yields; OpError if they do not go together
    results: ClassVar[Callable[..., list[Type]]]
    mnemonic: ClassVar[str]
    operands: ClassVar[tuple[OperandSpec, ...]]
    attributes: ClassVar[dict[str, Any]]
    infer: ClassVar[Callable[..., Any]]
    reference: ClassVar[Callable[..., Any]]
    lower: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, *, name: str | None = None, abstract: bool = False) -> None:
        super().__init_subclass__()
        if abstract:
            return
        cls.mnemonic = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if cls.mnemonic in OPERATORS:
            raise TypeError(f"operator {cls.mnemonic} is defined twice")
        cls.operands, cls.attributes = _declaration(cls.infer)
        OPERATORS[cls.mnemonic] = cls


def _declaration(infer: Callable[..., Any]) -> tuple[tuple[OperandSpec, ...], dict[str, Any]]:
    operands, attributes = [], {}
    for p in inspect.signature(infer).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            attributes[p.name] = p.default
        elif p.kind is p.VAR_POSITIONAL:
            operands.append(OperandSpec(p.name, variadic=True))
        else:
            operands.append(OperandSpec(p.name, optional=p.default is None))
    return tuple(operands), attributes


def _definition(cls: type[Operator]) -> str:
    """The IRDL of an operator (attributes are checked by `verify`, not by IRDL). All operands and results are of any
    type, each of its own."""

    def groups(name: str) -> list[str]:
        return [f"{name}_{i}: variadic" for i in range(cls.groups)]

    operands = [
        group
        for o in cls.operands
        for group in (groups(o.name) if o.variadic else [f"{o.name}: {'optional' if o.optional else ''}"])
    ]
    results = [] if cls.mnemonic == YIELD else groups("results") if cls.multiple else ["result_:"]
    said = [f"{x} %{i}" for i, x in enumerate([*operands, *results])]
    regions = [f"region_{i}: %region_{i}" for i in range(cls.regions)]
    of = {"operands": said[: len(operands)], "results": said[len(operands) :], "regions": regions}
    lists = "\n".join(f"irdl.{kind}({', '.join(x)})" for kind, x in of.items() if x)
    types = [f"%{i} = irdl.any" for i in range(len(said))] + [f"%region_{i} = irdl.region" for i in range(cls.regions)]
    return "\n".join([f"irdl.operation @{cls.mnemonic} {{", *types, lists, "}"])


class _NoEffect(ir.MemoryEffectsOpInterface):  # type: ignore[misc]
    """Operators that touch no memory."""

    @staticmethod
    def get_effects(op: ir.Operation, effects: Any) -> None:
        pass


class _Speculatable(ir.ConditionallySpeculatable):  # type: ignore[misc]
    """Operators that may run where nobody needs them."""

    @staticmethod
    def get_speculatability(op: ir.Operation) -> Any:
        return ir.Speculatability.Speculatable


def load() -> None:
    """Load the dialect into the current context (once; `context.context()` does it)."""
    text = "\n".join(map(_definition, OPERATORS.values()))
    irdl.load_dialects(ir.Module.parse(f"irdl.dialect @tw {{\n{text}\n}}"))
    ir.IsTerminatorTrait.attach(f"tw.{YIELD}")
    for cls in OPERATORS.values():
        if cls.pure:
            _NoEffect.attach(f"tw.{cls.mnemonic}")
            _Speculatable.attach(f"tw.{cls.mnemonic}")


# ---- attributes ----------------------------------------------------------------------------------------------------


def to_attribute(value: object) -> ir.Attribute:
    """Python value -> MLIR attribute (inside a context)."""
    if isinstance(value, ir.Attribute):
        return value
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _integer(value))
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(), value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(v, str) for v in value):
            return ir.ArrayAttr.get([ir.StringAttr.get(v) for v in value])
        if any(isinstance(v, float) for v in value):
            return ir.DenseF64ArrayAttr.get([float(v) for v in value])
        return ir.DenseI64ArrayAttr.get([_integer(v) for v in value])
    raise TypeError(f"no MLIR attribute for {value!r} of type {type(value).__name__}")


def _integer(value: int) -> int:
    if too_large(decode(value)):
        raise Undecided(f"{decode(value)} has too many open dimensions as factors: no integer has room for it")
    return int(value)


def from_attribute(attr: ir.Attribute) -> Any:
    """MLIR attribute -> Python value; attributes without a Python form come back as they are."""
    return _known_attribute(attr) if current() is None else _read_attribute(attr)


def _read_attribute(attr: ir.Attribute) -> Any:
    if isinstance(attr, ir.BoolAttr):
        return attr.value
    if isinstance(attr, ir.IntegerAttr):
        return decode(attr.value)
    if isinstance(attr, (ir.FloatAttr, ir.StringAttr)):
        return attr.value
    if isinstance(attr, ir.DenseI64ArrayAttr):
        return tuple(map(decode, attr))
    if isinstance(attr, ir.DenseF64ArrayAttr):
        return tuple(attr)
    if isinstance(attr, ir.ArrayAttr):
        return tuple(from_attribute(a) for a in attr)
    return attr


#: where no sizes are open, an attribute has one reading
_known_attribute = lru_cache(maxsize=1024)(_read_attribute)


# ---- operations ----------------------------------------------------------------------------------------------------


def mnemonic(op: ir.Operation | ir.OpView) -> str | None:
    """``"conv"`` for a `tw.conv` operation, None for operations of other dialects."""
    name = op.operation.name
    return name[3:] if name.startswith("tw.") else None


def operator(op: ir.Operation | ir.OpView) -> type[Operator]:
    return OPERATORS[op.operation.name[3:]]


def attributes(op: ir.Operation | ir.OpView) -> dict[str, Any]:
    """All attributes of a `tw` operation as Python values, defaults filled in."""
    spec = operator(op).attributes
    present = op.operation.attributes
    return {k: from_attribute(present[k]) if k in present else default for k, default in spec.items()}


def arguments(op: ir.Operation | ir.OpView) -> list[ir.Value | None]:
    """The operands in declaration order: None for an absent optional one, variadic ones at the end."""
    cls, values = operator(op), list(op.operation.operands)
    attrs = op.operation.attributes
    if "operandSegmentSizes" not in attrs:
        fixed = sum(not spec.variadic for spec in cls.operands)
        return [*values, *[None] * (fixed - len(values))]
    out: list[ir.Value | None] = []
    sizes = list(ir.DenseI32ArrayAttr(attrs["operandSegmentSizes"]))
    for spec, n in zip(cls.operands, sizes, strict=False):
        if spec.variadic:  # always the last: the rest belongs to it
            return [*out, *values]
        taken, values = values[:n], values[n:]
        out += taken or [None]
    return out


def as_list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]


def infer(cls: type[Operator], types: Sequence[Type | None], attrs: dict[str, Any]) -> list[Type]:
    """Result types of an operator applied to operand types; OpError says what does not fit."""
    required = sum(not (o.optional or o.variadic) for o in cls.operands)
    variadic = any(o.variadic for o in cls.operands)
    if len(types) < required or (len(types) > len(cls.operands) and not variadic):
        raise OpError(f"takes {required} to {len(cls.operands)} operands, got {len(types)}")
    try:
        return as_list(cls.infer(*types, **attrs))
    except OpError as e:
        if current() is not None:
            e.size_condition = lambda at: _accepts(cls, types, attrs, at)
        raise


def _accepts(
    cls: type[Operator], types: Sequence[Type | None], attrs: dict[str, Any], sizes: Mapping[str, int]
) -> bool:
    """Whether the type rule takes operands whose open dimensions have these sizes."""

    def known(x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(known, x))
        return value_at(decode(x), sizes) if type(x) is int or isinstance(x, Size) else x

    try:
        shapes = [None if t is None else t.with_shape(known(t.shape)) for t in types]
        cls.infer(*shapes, **{k: known(v) for k, v in attrs.items()})
    except (OpError, ArithmeticError):
        return False
    return True


def create(
    name: str,
    *operands: ir.Value | None,
    location: ir.Location | None = None,
    regions: Sequence[ir.Block] = (),
    **attrs: Any,
) -> list[ir.Value]:
    """Append `tw.<name>` at the current insertion point and return its results; types are inferred. `regions`: blocks,
    which it takes from where they are.

    Raises CompileError that names the operator and location if the type rule refuses the operands.

    >>> # tw.create("add", x, y)[0]
    """
    cls = OPERATORS[name]
    unknown = set(attrs) - set(cls.attributes)
    if unknown:
        raise CompileError(f"tw.{name} has no attribute {', '.join(sorted(unknown))}", stage="build")
    full = {**cls.attributes, **attrs}
    missing = [k for k, v in full.items() if v is inspect.Parameter.empty]
    if missing:
        raise CompileError(f"tw.{name} needs attribute {', '.join(missing)}", stage="build")
    types = [None if v is None else type_of(v) for v in operands]
    try:
        results = region_results(cls, types, regions) if cls.regions else infer(cls, types, full)
    except OpError as e:
        where = str(location) if location is not None else ""
        raise CompileError(f"tw.{name}: {e}", stage="type inference", operator=f"tw.{name} {where}".strip()) from None
    return create_typed(cls, operands, full, results, location, regions)


def create_typed(
    cls: type[Operator],
    operands: Sequence[ir.Value | None],
    attrs: dict[str, Any],
    results: Sequence[Type],
    location: ir.Location | None = None,
    regions: Sequence[ir.Block] = (),
) -> list[ir.Value]:
    """`create` for callers that already know the result types."""
    stored = {k: to_attribute(v) for k, v in attrs.items() if v is not None and not _same(v, cls.attributes.get(k))}
    values = [v for v in operands if v is not None]
    if any(o.optional or o.variadic for o in cls.operands):
        sizes = []
        rest = list(operands)
        for o in cls.operands:
            if o.variadic:
                sizes += _groups([v.type for v in rest if v is not None], cls.groups)
                rest = []
            else:
                sizes.append(0 if not rest or rest[0] is None else 1)
                rest = rest[1:]
        stored["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(sizes)
    if cls.multiple:
        stored["resultSegmentSizes"] = ir.DenseI32ArrayAttr.get(_groups(results, cls.groups))
    kinds = [t.mlir() for t in results]
    op = ir.Operation.create(
        f"tw.{cls.mnemonic}", results=kinds, operands=values, attributes=stored, regions=len(regions), loc=location
    )
    for region, block in zip(op.regions, regions, strict=True):
        block.append_to(region)
    return list(op.results)


def region_results(cls: type[Operator], types: Sequence[Type | None], blocks: Sequence[ir.Block]) -> list[Type]:
    """The result types of an operator with these regions; OpError says what does not fit."""
    if len(types) < sum(not o.variadic for o in cls.operands):
        raise OpError(f"takes at least {len(cls.operands)} operands, got {len(types)}")
    found = []
    for block in blocks:
        last = block.operations[len(block.operations) - 1].operation if len(block.operations) else None
        if last is None or mnemonic(last) != YIELD:
            raise OpError("a region does not end in tw.yield")
        found.append(([type_of(a) for a in block.arguments], [type_of(v) for v in last.operands]))
    return cls.results([t for t in types if t is not None], found)


def has_regions(op: ir.Operation | ir.OpView) -> bool:
    """Whether an operation is control flow of the dialect."""
    name = mnemonic(op)
    return name is not None and OPERATORS[name].regions > 0


def _groups(types: Sequence[object], most: int) -> list[int]:
    """How many neighbours of equal type there are, padded to `most`; CompileError if there are more changes of type."""
    sizes = [len(list(same)) for _, same in itertools.groupby(types)]
    if len(sizes) > most:
        raise CompileError(
            f"{len(types)} operands or results change their type {len(sizes) - 1} times, at most {most - 1} fit",
            stage="build",
            hint="use several operators in a row",
        )
    return sizes + [0] * (most - len(sizes))


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b and (a != 0 or str(a) == str(b))  # -0.0 is not 0.0


# ---- verification --------------------------------------------------------------------------------------------------


def verify(root: ir.Operation, *, stage: str = "verify") -> None:
    """Check every `tw` operation below `root` (attributes and type rule) after MLIR's own verifier.

    Raises CompileError naming the operator, its location and what was wrong.
    """
    try:
        root.verify()
    except ir.MLIRError as e:
        diagnostics = "; ".join(f"{d.location}: {d.message}" for d in e.error_diagnostics) or str(e)
        raise CompileError(f"invalid IR: {diagnostics}", stage=stage) from None
    errors: list[CompileError] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        try:
            if op.name.startswith("linalg."):  # scalars, which MLIR knows
                return ir.WalkResult.SKIP
            _verify_op(op, stage=stage)
            return ir.WalkResult.ADVANCE
        except CompileError as e:  # the walk would turn it into a RuntimeError
            errors.append(e)
            return ir.WalkResult.INTERRUPT

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    if errors:
        raise errors[0]


#: the attribute of an operator of level 3 that a processor beside the host computes as it is
WHOLE = "tw.processor"
_INTERNAL = {"operandSegmentSizes", "resultSegmentSizes"}
#: what the operators that were found to be right consist of, while no sizes are open (those of a graph are few, though
#: it has them many times); at most so many
_right: set[tuple[object, ...]] = set()
MOST_RIGHT = 4096


def _level2_types(op: ir.Operation) -> list[Type | None]:
    """The types of the operands; of an operator that is kept whole at level 3, with the dtypes of level 2."""
    types = [None if v is None else type_of(v) for v in arguments(op)]
    known = op.operation.attributes
    if WHOLE not in known or "tw.dtypes" not in known:
        return types
    kept = iter(ir.StringAttr(a).value for a in ir.ArrayAttr(known["tw.dtypes"]))
    return [None if t is None else t.with_dtype(next(kept)) for t in types]


def _verify_op(op: ir.Operation, *, stage: str) -> None:
    name = mnemonic(op)
    if name is None:
        return
    attributes, values = op.attributes, [*op.operands, *op.results]
    key = (name, len(op.operands), *[v.type for v in values], *[x for a in attributes for x in (a, attributes[a])])
    if key in _right and current() is None and not len(op.regions):
        return
    if (why := _wrong(op, name)) is not None:
        raise CompileError(f"tw.{name}{why}", stage=stage, operator=f"tw.{name} {op.location}")
    if current() is None:
        if len(_right) >= MOST_RIGHT:
            _right.clear()
        _right.add(key)


def _wrong(op: ir.Operation, name: str) -> str | None:
    """What is wrong with an operator, as the end of a sentence; None if nothing is."""
    cls = OPERATORS[name]
    known = op.operation.attributes
    extra = [a for a in known if a not in cls.attributes and a not in _INTERNAL and "." not in a]
    if extra:
        return f" has no attribute {', '.join(extra)}"
    attrs = attributes(op)
    missing = [k for k, v in attrs.items() if v is inspect.Parameter.empty]
    if missing:
        return f" needs attribute {', '.join(missing)}"
    try:
        types = _level2_types(op)
        if cls.regions:
            expected = region_results(cls, types, [b for r in op.regions for b in r.blocks])
        else:
            expected = infer(cls, types, attrs)
        if WHOLE in known:
            expected = [t.with_dtype(signless(t.dtype)) for t in expected]
    except (OpError, ValueError) as e:
        return f": {e}"
    actual = [type_of(r) for r in op.operation.results]
    if name == "constant" or actual == expected:
        return None
    return f": result type is {', '.join(map(str, actual))}, its rule gives {', '.join(map(str, expected))}"
