"""The constant: a reference into the constant table, or a few values written in the IR."""

from __future__ import annotations

from ..ir.dialect import Operator
from ..support.errors import OpError


class Constant(Operator):
    """``"tw.constant"() {symbol = "w0"}`` or ``{value = dense<...>}``; the result type is stated, not inferred.

    Made with `Graph.constant`; read with `Graph.constant_value`.
    """

    @staticmethod
    def infer(*, symbol: str | None = None, value: object = None):
        if (symbol is None) == (value is None):
            raise OpError("needs either a symbol or a value")
        return []
