"""Every error a user can see: what went wrong, in which stage, at which operator, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

#: whether something holds for sizes of open dimensions
SizeCondition = Callable[[Mapping[str, int]], bool]

#: what terminals obey or hide: control characters but tab and newline, marks of direction, halves of pairs
_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")


def printable(text: str) -> str:
    """Text of a model's with its control characters written out, so that a terminal does not obey them.

    >>> printable("name\\x1b[2J, next\\nline")
    'name\\\\x1b[2J, next\\nline'
    """
    return _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


class TilewrightError(Exception):
    """Base of all errors raised on purpose.

    Attributes: ``message`` (one sentence), ``stage`` (name of the pipeline stage or part), ``operator``
    (operator and source name, e.g. ``Conv "/layer1/conv"``), ``hint`` (what to do), ``saved`` (path of a
    saved reproducer). ``str(error)`` joins what is there, one fact a line.

    >>> print(TilewrightError("shape mismatch", stage="import", operator='Add "n1"', hint="check the model"))
    shape mismatch
      stage: import
      operator: Add "n1"
      hint: check the model
    """

    exit_code = 1
    #: the model cannot be one static program, but can be compiled at run time, when more is known
    run_time = False
    #: what decides for which sizes of open dimensions it is raised; not known in other processes
    size_condition: SizeCondition | None = None

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        operator: str | None = None,
        hint: str | None = None,
        saved: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.stage, self.operator, self.hint, self.saved = message, stage, operator, hint, saved

    def __str__(self) -> str:
        lines = [self.message]
        for key in ("stage", "operator", "hint", "saved"):
            value = getattr(self, key)
            if value:
                lines.append(f"  {key}: {value}")
        return printable("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:  # errors cross process borders (compile workers)
        return _rebuild, (
            type(self),
            self.message,
            {k: getattr(self, k) for k in ("stage", "operator", "hint", "saved")},
        )


def _rebuild(cls: type[TilewrightError], message: str, fields: dict[str, str | None]) -> TilewrightError:
    return cls(message, **fields)


class UsageError(TilewrightError):
    """The call itself is wrong: unknown option, stage, target, or a path that cannot be written."""

    exit_code = 2


class ModelError(TilewrightError):
    """The model file is damaged, inconsistent, or of a kind we do not read."""

    exit_code = 3


class UnsupportedError(TilewrightError):
    """The model is valid but uses something Tilewright does not have (all such things listed at once)."""

    exit_code = 4


class InputError(TilewrightError):
    """The arrays given to a call do not fit the model: name, shape or dtype."""

    exit_code = 5


class CompileError(TilewrightError):
    """A stage of the compiler failed on a valid model: our bug, or LLVM's; a reproducer is saved."""

    exit_code = 6


class PackageError(TilewrightError):
    """A .tw file that is damaged, foreign, or made for another machine or version."""

    exit_code = 7


class CheckError(TilewrightError):
    """Outputs differ from the expected ones by more than the tolerance."""

    exit_code = 8


class OpError(ValueError):
    """Raised inside an operator's type rule; the caller adds operator name and place."""

    #: as in `TilewrightError`
    size_condition: SizeCondition | None = None
