"""Small graphs of operators that are drawn: branches, values with several readers, inputs and outputs in between."""

from __future__ import annotations

import random

import numpy as np

from support.onnx_models import model, node, value

#: rows and columns of all tensors
ROWS, COLUMNS = 6, 20
_ONE = ("Relu", "Tanh", "Neg", "Softmax", "Transpose", "MatMul", "Norm", "Concat", "Topmost", "Double")
_TWO = ("Add", "Mul", "Sub")


def drawn(seed: int, count: int = 9):
    """A model of `count` operators, whose nodes are called ``n0``, ``n1`` ...; some of its values are outputs."""
    rng = random.Random(seed)
    weights = {f"w{i}": np.random.default_rng(i).standard_normal((COLUMNS, COLUMNS)).astype("f4") / 5 for i in range(2)}
    constants = {**weights, "half": np.array([COLUMNS // 2] * 2), "k": np.array([COLUMNS]), "last": np.array([-1])}
    nodes, values = [], ["x", "z"]
    for i in range(count):
        kind = rng.choice(_ONE + _TWO)
        a, b = rng.choice(values[-2:]), rng.choice(values)
        name, made = {"name": f"n{i}"}, f"v{i}"
        if kind in _TWO:
            nodes.append(node(kind, f"{a} {b}", made, **name))
        elif kind == "Transpose":
            nodes += [node(kind, a, f"t{i}", **name), node("Softmax", f"t{i}", f"s{i}", axis=-1, name=f"n{i}s")]
            nodes.append(node(kind, f"s{i}", made, name=f"n{i}b"))
        elif kind == "MatMul":
            nodes.append(node(kind, f"{a} w{rng.randrange(2)}", made, **name))
        elif kind == "Norm":
            nodes += [node("ReduceMean", f"{a} last", f"m{i}", name=f"n{i}m"), node("Sub", f"{a} m{i}", made, **name)]
        elif kind == "Concat":
            nodes.append(node("Split", f"{a} half", f"p{i} q{i}", axis=-1, name=f"n{i}s"))
            nodes.append(node(kind, f"q{i} p{i}", made, axis=-1, **name))
        elif kind == "Topmost":  # sorted, by the loop nest of an operator
            nodes.append(node("TopK", f"{a} k", f"{made} i{i}", **name))
        elif kind == "Double":
            nodes.append(node("Cast", a, f"d{i}", to=11, name=f"n{i}c"))
            nodes.append(node("Add", f"d{i} d{i}", f"e{i}", **name))
            nodes.append(node("Cast", f"e{i}", made, to=1, name=f"n{i}b"))
        else:
            nodes.append(node(kind, a, made, **({"axis": -1} if kind == "Softmax" else {}), **name))
        values.append(made)
    outputs = [value(n, (ROWS, COLUMNS)) for n in sorted({values[-1], *rng.sample(values[2:], 2)})]
    return model(nodes, [value("x", (ROWS, COLUMNS)), value("z", (ROWS, COLUMNS))], outputs, constants)


def given(seed: int) -> list[np.ndarray]:
    """Inputs for such a model."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((ROWS, COLUMNS)).astype("f4") for _ in range(2)]


__all__ = ["drawn", "given"]
