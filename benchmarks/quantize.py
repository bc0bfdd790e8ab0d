"""A float32 ONNX model as an int8 one in QDQ form, as exporters write it: QuantizeLinear and DequantizeLinear around
the operators, weights per output channel, biases in int32.

    python benchmarks/quantize.py model.onnx model.int8.onnx [--uint8] [--integers]

The ranges of the activations come from running the model on calibration inputs (standard normal ones here). With
``--integers`` inputs and outputs of the model are the 8-bit numbers themselves, as devices without an FPU want them,
and a softmax at its end is left out (it does not change which class is largest).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: operators whose results are quantized; ReLUs and clips join what is in front of them
QUANTIZED = ("Conv", "Gemm", "MatMul", "Add", "Mul", "AveragePool", "GlobalAveragePool", "ReduceMean", "Concat")
#: operators that pass numbers on: their result has the scale of their operand
MOVING = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity")
ACTIVATIONS = ("Relu", "Clip")


def quantize(
    model: onnx.ModelProto,
    calibration: Sequence[dict[str, np.ndarray]],
    *,
    unsigned: bool = False,
    integers: bool = False,
) -> onnx.ModelProto:
    """The int8 (or uint8) form of a float model; see the module docstring. Shapes of inputs must be those of the
    calibration inputs."""
    return _Quantizer(model, calibration, unsigned, integers).run()


class _Quantizer:
    def __init__(
        self, model: onnx.ModelProto, calibration: Sequence[dict[str, np.ndarray]], unsigned: bool, integers: bool
    ) -> None:
        self.model, self.integers = model, integers
        self.dtype = np.uint8 if unsigned else np.int8
        self.constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.steps: dict[str, tuple[np.float32, int]] = {}
        self.done: dict[str, str] = {}  # float name -> dequantized name
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for n in model.graph.node:
            for x in n.input:
                self.users.setdefault(x, []).append(n)
        self.calibration = calibration
        self.ranges = _ranges(model, calibration)

    def run(self) -> onnx.ModelProto:
        graph = self.model.graph
        outputs = [o.name for o in graph.output]
        shapes = {k: list(v.shape) for k, v in self.calibration[0].items()}
        inputs = [i for i in graph.input if i.name not in self.constants]
        for i in inputs:
            self.quantized(i.name, as_input=self.integers)
        end = list(graph.node)
        if self.integers and end[-1].op_type == "Softmax":
            outputs = [end.pop().input[0]]
        for n in end:
            self.node(n, outputs)
        kind = TensorProto.UINT8 if self.dtype == np.uint8 else TensorProto.INT8
        new_inputs = [
            helper.make_tensor_value_info(i.name, kind if self.integers else TensorProto.FLOAT, shapes[i.name])
            for i in inputs
        ]
        new_outputs = [
            helper.make_tensor_value_info(
                f"{o}_q" if self.integers else o, kind if self.integers else TensorProto.FLOAT, None
            )
            for o in outputs
        ]
        arrays = [numpy_helper.from_array(a, k) for k, a in self.arrays.items()]
        made = helper.make_graph(self.nodes, graph.name or "graph", new_inputs, new_outputs, arrays)
        result = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return onnx.shape_inference.infer_shapes(result)

    def add(self, kind: str, inputs: list[str], outputs: list[str], name: str = "", **attributes) -> None:
        self.nodes.append(helper.make_node(kind, inputs, outputs, name or f"{kind}_{outputs[0]}", **attributes))

    def quantized(self, name: str, step: tuple[np.float32, int] | None = None, as_input: bool = False) -> str:
        """Quantize and dequantize a float tensor; the name of the result."""
        if name not in self.done:
            step = self.steps[name] = step or self.step(name)
            self.arrays[f"{name}_scale"], self.arrays[f"{name}_zero"] = (
                np.asarray(step[0]),
                np.asarray(step[1], self.dtype),
            )
            parameters = [f"{name}_scale", f"{name}_zero"]
            stored = name if as_input else f"{name}_q"
            if not as_input:
                self.add("QuantizeLinear", [name, *parameters], [stored])
            self.add("DequantizeLinear", [stored, *parameters], [f"{name}_dq"])
            self.done[name] = f"{name}_dq"
        return self.done[name]

    def step(self, name: str) -> tuple[np.float32, int]:
        """Scale and zero point of the range of a tensor (which contains 0)."""
        low, high = (min(self.ranges[name][0], 0.0), max(self.ranges[name][1], 0.0))
        info = np.iinfo(self.dtype)
        scale = np.float32(max(high - low, 1e-6) / 255)
        return scale, int(np.clip(round(info.min - low / float(scale)), info.min, info.max))

    def node(self, n: onnx.NodeProto, outputs: list[str]) -> None:
        attributes = {a.name: helper.get_attribute_value(a) for a in n.attribute}
        inputs = [self.operand(n, i, x) for i, x in enumerate(n.input)]
        self.add(n.op_type, inputs, list(n.output), n.name, **attributes)
        result = n.output[0]
        users = self.users.get(result, [])
        if len(users) == 1 and users[0].op_type in ACTIVATIONS and n.op_type not in ACTIVATIONS:
            return
        if n.op_type in (*QUANTIZED, *ACTIVATIONS):
            step = None
        elif n.op_type in MOVING and n.input[0] in self.steps:
            step = self.steps[n.input[0]]
        else:
            return
        if result in outputs and not self.integers:
            return
        self.quantized(result, step)
        if result in outputs:  # the 8-bit numbers are the output: nothing reads them as floats
            self.nodes.pop()

    def operand(self, n: onnx.NodeProto, i: int, name: str) -> str:
        if name not in self.constants:
            return self.done.get(name, name)
        array = self.constants[name]
        if n.op_type in ("Conv", "Gemm", "MatMul") and i == 1:
            channel = 0 if n.op_type == "Conv" or _transposed(n) else array.ndim - 1
            return self.weights(name, array, channel)
        if n.op_type in ("Conv", "Gemm") and i == 2:
            return self.bias(name, array, n)
        self.arrays[name] = array
        return name

    def weights(self, name: str, array: np.ndarray, channel: int) -> str:
        axes = tuple(d for d in range(array.ndim) if d != channel)
        scale = (np.maximum(np.abs(array).max(axis=axes), 1e-8) / 127).astype(np.float32)
        spread = scale.reshape([-1 if d == channel else 1 for d in range(array.ndim)])
        self.arrays[f"{name}_q"] = np.clip(np.rint(array / spread), -127, 127).astype(np.int8)
        self.arrays[f"{name}_scale"], self.arrays[f"{name}_zero"] = scale, np.zeros(scale.shape, np.int8)
        if f"{name}_dq" not in self.done.values():
            self.add("DequantizeLinear", [f"{name}_q", f"{name}_scale", f"{name}_zero"], [f"{name}_dq"], axis=channel)
            self.done[name] = f"{name}_dq"
        return f"{name}_dq"

    def bias(self, name: str, array: np.ndarray, n: onnx.NodeProto) -> str:
        if n.input[0] not in self.steps:
            self.arrays[name] = array
            return name
        scale = (self.steps[n.input[0]][0] * self.arrays[f"{n.input[1]}_scale"]).astype(np.float32)
        self.arrays[f"{name}_q"] = np.rint(array / scale).astype(np.int32)
        self.arrays[f"{name}_scale"], self.arrays[f"{name}_zero"] = scale, np.zeros(scale.shape, np.int32)
        self.add("DequantizeLinear", [f"{name}_q", f"{name}_scale", f"{name}_zero"], [f"{name}_dq"], axis=0)
        return f"{name}_dq"


def _transposed(n: onnx.NodeProto) -> bool:
    return any(a.name == "transB" and a.i for a in n.attribute)


def _ranges(model: onnx.ModelProto, calibration: Sequence[dict[str, np.ndarray]]) -> dict[str, tuple[float, float]]:
    """Smallest and largest number of every float tensor of the graph over the calibration inputs."""
    import tilewright as tw

    inferred = onnx.ModelProto()
    inferred.CopyFrom(model)
    names = [o for n in model.graph.node for o in n.output if o]
    del inferred.graph.output[:]
    del inferred.graph.value_info[:]
    inferred.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    shapes = {k: v.shape for k, v in calibration[0].items()}
    compiled = tw.compile(inferred, inputs=shapes)
    found: dict[str, tuple[float, float]] = {}
    for given in calibration:
        results = dict(zip(names, compiled.run(given), strict=True)) | given
        for k, a in results.items():
            low, high = found.get(k, (np.inf, -np.inf))
            found[k] = (min(low, float(a.min())), max(high, float(a.max())))
    return found


def normal_inputs(model: onnx.ModelProto, count: int = 4, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Standard normal calibration inputs; unknown dimensions are 1."""
    rng = np.random.default_rng(seed)
    constants = {i.name for i in model.graph.initializer}
    return [
        {
            i.name: rng.standard_normal([d.dim_value or 1 for d in i.type.tensor_type.shape.dim]).astype(np.float32)
            for i in model.graph.input
            if i.name not in constants
        }
        for _ in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--uint8", action="store_true", help="activations in uint8")
    parser.add_argument("--integers", action="store_true", help="inputs and outputs of the model in 8 bits")
    options = parser.parse_args()
    model = onnx.load(options.model)
    made = quantize(model, normal_inputs(model), unsigned=options.uint8, integers=options.integers)
    onnx.save(made, options.output)


if __name__ == "__main__":
    main()
