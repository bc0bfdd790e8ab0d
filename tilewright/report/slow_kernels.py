"""Reproducers of kernels that stay far from their bound: small files that say all one needs to look into it, without
the model and without its weights.

A file is a module after the stage `fuse` whose @main calls the kernel once; constants hold a single value. Comments at
its head tell the machine, the rule, what goes too far, why other rules refused, and how to run it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from torch_mlir import ir

from ..ir.context import parse, use
from ..ir.graph import Graph
from ..program.package import Package
from ..support.errors import UsageError
from ..tensor.standalone_kernel import alone
from .explain import why_slow

#: what constants hold: no weight, and nothing that could be an index beyond a tensor
_FILL = {"f": "1.0e-02", "b": "1.0e-02", "i": "0"}


def reproducers(package: Package, names: Collection[str] = ()) -> dict[str, str]:
    """File name -> content, for each kernel of a package that its report marks as slow, or for the kernels whose
    symbols are or begin with one of `names`. UsageError if a name fits none.

        for file, text in reproducers(tilewright.compile("model.onnx").package).items():
            Path(file).write_text(text)
    """
    about = {str(k["symbol"]): k for k in package.report.get("kernels", [])}
    missing = [n for n in names if not any(symbol.startswith(n) for symbol in about)]
    if missing:
        raise UsageError(f"there is no kernel {missing[0]!r}", hint="`tilewright explain` lists the kernels of a model")
    chosen = {s: k for s, k in about.items() if (any(s.startswith(n) for n in names) if names else why_slow(k))}
    if not chosen:
        return {}
    text = package.levels.get("fuse")
    if text is None:
        raise UsageError("this package does not keep the IR of its kernels", hint="give the model instead")
    graph = Graph(parse(text, "the fused module"))
    found = {}
    with use():
        for f in graph.functions():
            symbol = ir.StringAttr(f.attributes["sym_name"]).value
            if symbol in chosen:
                found[f"{symbol}.mlir"] = _head(f"{symbol}.mlir", package, chosen[symbol]) + alone(
                    f, lambda i, t: f"value = {_splat(t)}"
                )
    return found


def _head(file: str, package: Package, about: dict[str, Any]) -> str:
    """What is known of a kernel, as comments."""
    from .. import __version__

    flops = int(about.get("flops", 0)) + int(about.get("integer_ops", 0))
    lines = [
        f"a kernel that may be slow: {about.get('does')}, {why_slow(about) or 'not marked'}",
        f"operations: {flops}, executed: {about.get('executed', 1.0)} times that",
        f"rule: {about.get('kind')}, decisions: {json.dumps(about.get('decisions', {}))}",
        *([f"plan: {about['plan']}"] if about.get("plan") else []),
        *(f"refused by {rule}: {reason}" for rule, reason in about.get("refused", ())),
        f"tilewright {__version__}, target {package.target}, machine: {json.dumps(package.description)}",
        "to run it:",
        "  import numpy as np, tilewright as tw",
        f'  run = tw.compile("{file}", start_after="fuse", threads=1)',
        "  print(run.explain(), run.profile([np.ones(i.shape, i.numpy_dtype) for i in run.inputs]))",
    ]
    return "".join(f"// {' '.join(line.split()) if not line.startswith(' ') else line}\n" for line in lines)


def _splat(t: ir.Type) -> str:
    """One value for all elements of a tensor."""
    element = str(ir.RankedTensorType(t).element_type)
    value = "false" if element == "i1" else _FILL[element[0]]
    return f"dense<{value}> : {t}"


__all__ = ["reproducers"]
