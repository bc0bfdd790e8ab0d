"""Traces: what was applied to a schedule, as Python text that replays on another kernel of the same form.

    # loops: i, j, k
    # blocks: c
    # buffers: a, b, c
    i_o, i_i = s.split("i", 8)
    s.reorder("i_o", "k", "i_i", "j")

The names are those of the kernel the trace comes from. `replay` maps them by position to those of the new kernel: its
loops, blocks and buffers in order, then the results of each step."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..support.errors import TilewrightError, UsageError
from ..tensor.expr import Const, Expr, Op, Var, floordiv, minimum, mod
from ..tensor.kernel import Kernel

_INFIX: dict[type, Callable[[Expr, Expr], Expr]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: floordiv, ast.Mod: mod,
}  # fmt: skip


#: a `schedule.schedule.Schedule`, which this file does not know: schedules have traces
S = TypeVar("S", bound=Any)
_MAKES = "# makes "


@dataclass(frozen=True)
class Step:
    """One applied primitive: its name, its arguments, the names it returned, and those of the buffers it made."""

    name: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    result: Any = None
    made: tuple[str, ...] = ()

    def __str__(self) -> str:
        given = [_text(a) for a in self.args] + [f"{k}={_text(v)}" for k, v in self.kwargs.items()]
        results = [self.result] if isinstance(self.result, str) else list(self.result or ())
        left = ", ".join(results) + ("," if len(results) == 1 and not isinstance(self.result, str) else "")
        right = f"  {_MAKES}{', '.join(self.made)}" if self.made else ""
        return f"{left + ' = ' if left else ''}s.{self.name}({', '.join(given)}){right}"


class Trace(list[Any]):
    """The steps applied to a kernel; ``str`` is the text that `replay` takes."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def __str__(self) -> str:
        names = _names(self.kernel)
        head = [f"# {kind}: {', '.join(values)}" for kind, values in names.items()]
        return "\n".join([*head, *map(str, self)]) + "\n"


def format_trace(s: Any) -> str:
    """The trace of a schedule as text."""
    return str(s.trace)


def replay(s: S, text: str) -> S:
    """Apply a trace to a fresh schedule, and return it.

    UsageError if the text is no trace or the kernel has another form; ScheduleError, with the step, if one is not legal
    on this kernel."""
    names, lines = _mapping(s.kernel, text), text.splitlines()
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise UsageError(f"the trace is not readable: {e.msg} in line {e.lineno}", stage="schedule") from None
    for node in tree.body:
        target, call = (
            (node.targets[0], node.value) if isinstance(node, ast.Assign) else (None, getattr(node, "value", None))
        )
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            raise UsageError(f"line {node.lineno} of the trace is no call of a primitive", stage="schedule")
        method = getattr(type(s), call.func.attr, None)
        if method is None or not getattr(method, "is_primitive", False):
            raise UsageError(f"{call.func.attr!r} in line {node.lineno} of the trace is no primitive", stage="schedule")
        own = {} if call.func.attr == "tactic" else names  # its arguments are no names of the kernel
        args = [_value(a, own) for a in call.args]
        given = {str(k.arg): _value(k.value, own) for k in call.keywords}
        result = _apply(s, method, args, given, f"line {node.lineno} of the trace: {lines[node.lineno - 1].strip()}")
        names.update(zip(_made(lines[(node.end_lineno or 1) - 1]), s.trace[-1].made, strict=False))
        if target is not None:
            old = (
                [target] if isinstance(target, ast.Name) else list(target.elts) if isinstance(target, ast.Tuple) else []
            )
            new = [result] if isinstance(result, str) else list(result or ())
            if len(old) != len(new):
                raise UsageError(
                    f"line {node.lineno} of the trace gives {len(new)} names here, not {len(old)}", stage="schedule"
                )
            names.update({o.id: n for o, n in zip(old, new, strict=True) if isinstance(o, ast.Name)})
    return s


def _apply(s: Any, method: Callable[..., Any], args: list[object], given: dict[str, object], step: str) -> Any:
    """What a primitive returns; errors name the step."""
    try:
        return method(s, *args, **given)
    except TilewrightError as e:
        e.message += f" ({step})"
        e.args = (e.message,)
        raise
    except TypeError as e:  # arguments that the primitive does not have
        raise UsageError(f"{e} ({step})", stage="schedule") from None


def _made(line: str) -> list[str]:
    """The buffers that a step made where the trace comes from."""
    return [n.strip() for n in line.partition(_MAKES)[2].split(",") if n.strip()]


def _names(kernel: Kernel) -> dict[str, list[str]]:
    return {
        "loops": [v for stage in kernel.stages for v, _ in stage.dims],
        "blocks": [stage.name for stage in kernel.stages],
        "buffers": [b.name for b in (*kernel.params, *kernel.temporaries)],
    }


def _mapping(kernel: Kernel, text: str) -> dict[str, str]:
    """Old name -> new name for what the kernel itself has."""
    found: dict[str, str] = {}
    own = _names(kernel)
    for line in text.splitlines():
        kind, colon, rest = line.removeprefix("# ").partition(":")
        if line.startswith("# ") and colon and kind in own:
            old = [n.strip() for n in rest.split(",") if n.strip()]
            if len(old) != len(own[kind]):
                raise UsageError(
                    f"the trace is for a kernel with {len(old)} {kind}, this one has {len(own[kind])}", stage="schedule"
                )
            # a block is often called like its buffer: both map by position to names that are equal too
            found.update(zip(old, own[kind], strict=True))
    return found


def _text(value: object) -> str:
    if isinstance(value, Expr):
        return f"index({str(value)!r})"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _value(node: ast.expr, names: dict[str, str]) -> Any:
    """An argument: names are mapped, expressions built."""
    if isinstance(node, ast.Constant):
        return names.get(node.value, node.value) if isinstance(node.value, str) else node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_value(e, names) for e in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "index"
        and isinstance(node.args[0], ast.Constant)
    ):
        return _index(ast.parse(str(node.args[0].value), mode="eval").body, names)
    raise UsageError(f"line {node.lineno} of the trace has an argument that cannot be read", stage="schedule")


def _index(node: ast.expr, names: dict[str, str]) -> Expr:
    if isinstance(node, ast.Constant):
        return Const(int(node.value), "index")  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return Var(names.get(node.id, node.id))
    if isinstance(node, ast.UnaryOp):
        return _index(node.operand, names) * -1
    if isinstance(node, ast.BinOp) and type(node.op) in _INFIX:
        return _INFIX[type(node.op)](_index(node.left, names), _index(node.right, names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "minsi":
        return minimum(*[_index(a, names) for a in node.args])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return Op(node.func.id, tuple(_index(a, names) for a in node.args), "index")
    raise UsageError("the trace has an index that cannot be read", stage="schedule")


__all__ = ["Step", "Trace", "format_trace", "replay"]
