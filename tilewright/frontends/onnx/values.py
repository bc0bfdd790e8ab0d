"""What flows between ONNX nodes during import: tensors, some of which are known, and the failures that are
collected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from ...ir import dialect
from ...ir.types import Type, Typed, is_float, type_of
from ...support.errors import UnsupportedError


@dataclass(eq=False)
class OnnxValue(Typed):
    """A tensor: a value in the IR, or an array that enters the IR when an operator first uses it.

    `array` is set for initializers and folded constants. `later` computes the array of a tensor that only depends on
    constants but was too large to fold; see `known`.
    """

    type: Type
    ssa: ir.Value | None = None
    array: np.ndarray | None = None
    later: Callable[[], np.ndarray] | None = None
    name: str = ""
    #: of floats that are made of integers which are known, but hold open sizes: these
    whole: np.ndarray | None = None

    @property
    def constant(self) -> bool:
        """Whether the tensor does not depend on the model's inputs."""
        return self.array is not None or self.later is not None

    def known(self) -> np.ndarray | None:
        """The array behind a tensor that only depends on constants, None for every other one."""
        if self.array is None and self.later is not None:
            self.array = self.later()
        return self.array


class Poison:
    """The poison value of outputs of nodes that could not be imported: the import continues and finds all of them."""


POISON = Poison()


class Deferred(Poison):
    """The placeholder of outputs that a later subgraph computes."""


@dataclass(frozen=True, eq=False)
class SequenceHandle(Poison):
    """A handle of a sequence of arrays that the runtime holds under `name`: no program depends on its length."""

    name: str
    entry: list


@dataclass(frozen=True, eq=False)
class Partial(Poison):
    """A tensor whose size along `axis` is known after the run: the first `count` positions of `buffer`.

    What an import function returns for an operator that writes into the largest buffer it may need.
    """

    buffer: OnnxValue
    count: OnnxValue
    axis: int = 0


@dataclass(frozen=True)
class OnnxFailure:
    """One node that cannot be imported; `needs` names model inputs whose values would help."""

    operator: str
    node: str
    reason: str = ""
    needs: frozenset[str] = frozenset()
    #: what is missing is known once the model runs
    run_time: bool = False


class OnnxNotImported(Exception):
    """Raised by an import function for a node (or a use of it) that is not supported: collected, not fatal.

    `needs` names the model inputs on whose values the node depends where it could be imported if they were constants.
    """

    def __init__(self, message: str = "", needs: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.needs = needs


class DataDependentNode(OnnxNotImported):
    """Raised by an import function that needs what only a run can tell: the number in `value`, or the size of a result.

    A model with such nodes is compiled in parts, at run time (`staging`); `value` is the tensor asked for, None where
    the node as a whole has to wait.
    """

    def __init__(
        self, message: str, value: OnnxValue | None = None, needs: frozenset[str] = frozenset(), question: str = ""
    ) -> None:
        super().__init__(message, needs)
        self.value = value
        #: under which name the importer looks for the number when it imports the node again; "" if it does not
        self.question = question
        #: the operator that asked
        self.operator = ""


class NeedsValues(UnsupportedError):
    """The model can be imported if the inputs named by `needs` are given as arrays, and become constants."""

    needs: frozenset[str] = frozenset()


def inputs_of(value: OnnxValue) -> set[int]:
    """Positions of the arguments of @main that a tensor is computed from."""
    found: set[int] = set()
    seen: set[ir.Operation] = set()
    todo = [value.ssa] if value.ssa is not None else []
    while todo:
        v = todo.pop()
        if isinstance(v.owner, ir.Block):
            found.add(ir.BlockArgument(v).arg_number)
        elif v.owner not in seen:
            seen.add(v.owner)
            todo += list(v.owner.operands)
    return found


#: operators that lose (almost) nothing of small operands: whoever needs the result needs all of them
ARITHMETIC = frozenset({
    "constant", "cast", "reshape", "expand", "transpose", "slice", "concat", "pad", "add", "sub", "mul", "div", "mod",
    "pow", "neg", "abs", "sign", "sqrt", "floor", "ceil", "round", "max", "min", "reduce_prod",
})  # fmt: skip


def is_arithmetic(value: OnnxValue) -> bool:
    """Whether a tensor is computed from arguments of @main by shape arithmetic alone: elementwise, or read at constant
    positions. Results of table lookups, sums, comparisons ... are not: they are the same for many values of the
    arguments.
    """
    todo, seen = [value.ssa], set()
    while todo:
        v = todo.pop()
        if v is None or isinstance(v.owner, ir.Block) or v.owner in seen:
            continue
        seen.add(v.owner)
        name = dialect.mnemonic(v.owner)
        operands = list(v.owner.operands)
        known = name == "gather" and dialect.mnemonic(operands[1].owner) == "constant"
        if name not in ARITHMETIC and not known:
            return False
        todo += operands
    return True


#: those of `ARITHMETIC` whose results tell what the operands were, but for those that round
LOSSLESS = frozenset({
    "cast", "reshape", "expand", "transpose", "concat", "pad", "add", "sub", "mul", "neg",
})  # fmt: skip


def sources(value: OnnxValue) -> list[ir.Value]:
    """The arguments of @main, and the results of operators that lose information, that can be recovered from a tensor:
    it is computed from them by operators that lose nothing, has as many elements as they have together, and nothing
    cancels out. The tensor itself if there are none.
    """
    if value.ssa is None:
        return []
    todo, seen, found = [value.ssa], set(), []
    while todo:
        v = todo.pop()
        if v in seen:
            return [value.ssa]
        argument = isinstance(v.owner, ir.Block)
        if not argument and dialect.mnemonic(v.owner) == "constant":
            continue
        seen.add(v)
        operands = [] if argument else list(v.owner.operands)
        rounds = not is_float(type_of(v).dtype) and any(is_float(type_of(o).dtype) for o in operands)
        if argument or rounds or dialect.mnemonic(v.owner) not in LOSSLESS:
            found.append(v)
        else:
            todo += operands
    return found if sum(type_of(v).size for v in found) <= value.type.size else [value.ssa]


def reached(value: OnnxValue, ends: set[ir.Value]) -> set[ir.Value]:
    """Those of `ends` that a tensor is computed from directly, not through another one of them."""
    todo, found, seen = [value.ssa], set(), set()
    while todo:
        v = todo.pop()
        if v in ends:
            found.add(v)
        elif v is not None and not isinstance(v.owner, ir.Block) and v.owner not in seen:
            seen.add(v.owner)
            todo += list(v.owner.operands)
    return found


def report(failures: list[OnnxFailure], source: str) -> UnsupportedError:
    """All failures as one error: a line an operator and reason, with its count and its first nodes."""
    groups: dict[tuple[str, str], list[str]] = {}
    for f in failures:
        groups.setdefault((f.operator, f.reason), []).append(f.node)
    lines = []
    for (operator, reason), nodes in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        names = ", ".join(nodes[:3]) + (", ..." if len(nodes) > 3 else "")
        lines.append(
            f"  {operator}: {len(nodes)} node{'s' * (len(nodes) > 1)} ({names})" + (f": {reason}" if reason else "")
        )
    kinds = len({f.operator for f in failures})
    solvable = all(f.needs for f in failures)
    error = (NeedsValues if solvable else UnsupportedError)(
        f"{source} uses {kinds} operator{'s' * (kinds > 1)} that cannot be imported:\n" + "\n".join(lines),
        stage="import",
        hint="docs/add_an_operator.md shows how an operator is added",
    )
    if isinstance(error, NeedsValues):
        error.needs = frozenset().union(*[f.needs for f in failures])
        error.hint = (
            f"give inputs {', '.join(sorted(error.needs))} as arrays: they become constants of the compiled model"
        )
    error.run_time = all(f.run_time for f in failures)
    return error
