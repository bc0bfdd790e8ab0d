"""Instructions of int8 models on simulated Cortex-M4 and M55 boards, against plain scalar C compiled with clang -O3.

    python benchmarks/microcontrollers.py [--models kws_dscnn,tiny_ae,...] [--targets cortex-m4,cortex-m55] [--out DIR]

The C is what one writes without thinking of a processor (naive_kernels.c here): a loop nest an operator, products of
bytes added in 32 bits, each sum requantized as it is finished. It computes the same bits, which is checked. Both run
in QEMU with ``-icount shift=0``, which counts instructions, not cycles. Needs qemu-system-arm, ld.lld and clang.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from quantize import normal_inputs, quantize  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.ir import dialect  # noqa: E402
from tilewright.ir.context import use  # noqa: E402
from tilewright.ir.types import type_of  # noqa: E402
from tilewright.program.program import BufferRef, Call  # noqa: E402
from tilewright.targets.mcu.machines import MACHINES, Machine  # noqa: E402

MODELS = ("kws_dscnn", "tiny_resnet8", "tiny_mobilenet", "tiny_ae")
BOUNDS = {"cortex-m4": 0.6, "cortex-m55": 0.25}


def clang() -> str:
    found = next((n for n in ("clang", *(f"clang-{v}" for v in range(22, 13, -1))) if shutil.which(n)), None)
    if found is None:
        raise SystemExit("clang was not found: apt install clang")
    return found


# ---- the naive program ---------------------------------------------------------------------------------------------


class NaiveProgram:
    """C text of a model: one call of naive_kernels.c an operator of the graph after the pass `integers`."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = tw.compile(model, target="cortex-m4", stop_after="layout")
        self.data: list[str] = []
        self.calls: list[str] = []
        self.names: dict = {}

    def text(self, symbol: str) -> str:
        with use():
            arguments = list(self.graph.block.arguments)
            self.names.update({a: f"in{i}" for i, a in enumerate(arguments)})
            for op in self.graph.operations():
                if op.name == "func.return":
                    results = list(op.operands)
                else:
                    self.operation(op)
            for i, r in enumerate(results):
                self.calls.append(f"copy_bytes({self.names[r]}, out{i}, {type_of(r).size});")
            inputs = [f"const int8_t *in{i}" for i in range(len(arguments))]
            outputs = [f"int8_t *out{i}" for i in range(len(results))]
        body = "\n    ".join(self.calls)
        signature = ", ".join([*inputs, *outputs, "void *scratch", "int32_t thread", "int32_t threads"])
        return "\n".join(
            [
                '#include "naive_kernels.c"',
                *self.data,
                f"void {symbol}({signature})\n{{\n    (void)scratch, (void)thread, (void)threads;\n    {body}\n}}\n",
            ]
        )

    def constant(self, array: np.ndarray, kind: str) -> str:
        name = f"data{len(self.data)}"
        numbers = ", ".join(map(str, np.asarray(array).reshape(-1).tolist()))
        self.data.append(f"static const {kind} {name}[] = {{{numbers}}};")
        return name

    def buffer(self, value, kind: str = "int8_t") -> str:
        name = f"data{len(self.data)}"
        self.data.append(f"static {kind} {name}[{type_of(value).size}];")
        self.names[value] = name
        return name

    def operation(self, op) -> None:
        name = dialect.mnemonic(op)
        if name == "constant":
            return
        a = dialect.attributes(op)
        if name in ("reshape",):
            self.names[op.results[0]] = self.names[op.operands[0]]
        elif name == "transpose":
            self.transpose(op, a["permutation"])
        elif name in ("integer_conv", "integer_matmul", "reduce_bytes"):
            self.names[op.results[0]] = op  # computed with the requantization that follows
        elif name == "requantize":
            self.requantized(op, a)
        elif name == "integer_add":
            x, y = (self.names[v] for v in op.operands)
            out, size = self.buffer(op.results[0]), type_of(op.results[0]).size
            numbers = ", ".join(str(a[k]) for k in ("mx", "my", "offset", "shift", "zero", "low", "high"))
            self.calls.append(f"add({x}, {y}, {out}, {size}, {numbers});")
        elif name == "max_pool":
            _, h, w, c = type_of(op.operands[0]).dims
            _, oh, ow, _ = type_of(op.results[0]).dims
            out = self.buffer(op.results[0])
            shape = [h, w, c, oh, ow, *a["kernel"], *a["strides"], *a["pads"][:2]]
            self.calls.append(f"max_pool({self.names[op.operands[0]]}, {out}, {', '.join(map(str, shape))});")
        else:
            raise SystemExit(f"no naive kernel for tw.{name}")

    def transpose(self, op, order) -> None:
        dims = type_of(op.operands[0]).dims
        out = self.buffer(op.results[0])
        steps = np.cumprod([1, *dims[::-1]])[::-1][1:]
        lists = [[dims[p] for p in order], [int(steps[p]) for p in order]]
        lists = [[1] * (4 - len(x)) + x for x in lists]
        self.calls.append(
            f"transpose({self.names[op.operands[0]]}, {out}, {', '.join(str(n) for x in lists for n in x)});"
        )

    def requantized(self, op, a) -> None:
        source = self.names[op.operands[0]]
        bias, multiplier, shift = (self.graph.constant_value(v) for v in list(op.operands)[1:4])
        x = self.names[source.operands[0]]
        out = self.buffer(op.results[0])
        attributes = dialect.attributes(source)
        dims = type_of(source.operands[0]).dims
        channels = type_of(source.results[0]).dims[-1]
        name = dialect.mnemonic(source)
        tail = [self.constant(np.broadcast_to(p, channels), "int32_t") for p in (multiplier, shift)]
        numbers = ", ".join(str(a[k]) for k in ("left", "zero", "low", "high"))
        if name == "reduce_bytes":
            count = int(np.prod(dims[1:-1]))
            offset = self.constant(np.broadcast_to(bias, channels), "int32_t")
            self.calls.append(f"mean({x}, {out}, {count}, {channels}, {offset}, {', '.join(tail)}, {numbers});")
            return
        w = self.graph.constant_value(source.operands[1])
        zero = attributes.get("pad_value", 0)
        if name == "integer_matmul":
            w, kernel, places = w.T.reshape(channels, 1, 1, -1), (1, 1), (1, int(np.prod(dims[:-1])))
            shape = [1, places[1], dims[-1], *places, channels, 1, 1, 1, 1, 0, 0]
        else:
            w, kernel = w.transpose(0, 2, 3, 1), w.shape[2:]
            places = type_of(source.results[0]).dims[1:3]
            shape = [*dims[1:], *places, channels, *kernel, *attributes["strides"], *attributes["pads"][:2]]
        # as kernels of others have it: the zero point is subtracted from every number
        own = np.broadcast_to(bias, channels) + zero * w.astype(np.int64).sum(axis=(1, 2, 3))
        depthwise = attributes.get("groups", 1) > 1
        if depthwise:
            w = w.transpose(3, 1, 2, 0)
        kernel_name = "depthwise" if depthwise else "conv"
        arguments = [
            x,
            self.constant(w, "int8_t"),
            self.constant(own, "int32_t"),
            *tail,
            out,
            *map(str, shape),
            str(zero),
        ]
        self.calls.append(f"{kernel_name}({', '.join(arguments)}, {numbers});")


def naive_object(text: str, machine: Machine, vectors: bool) -> bytes:
    code = machine.code
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "naive.c", Path(folder) / "naive.o"
        source.write_text(text)
        flags = [f"--target={code.triple}", f"-mcpu={code.cpu}", "-O3", "-ffreestanding", f"-I{HERE}", "-c", "-std=c99"]
        if not vectors:
            flags += ["-fno-vectorize", "-fno-slp-vectorize"]
        subprocess.run([clang(), *flags, str(source), "-o", str(made)], check=True)
        return made.read_bytes()


def naive_package(executable, text: str, machine: Machine, vectors: bool):
    """The model's package with all kernels replaced by the one naive function."""
    package = executable.package
    program = package.program
    args = [BufferRef("input", i, 0, t.nbytes) for i, t in enumerate(program.inputs)]
    args += [BufferRef("output", i, 0, t.nbytes) for i, t in enumerate(program.outputs)]
    call = Call("naive", tuple(args), tuple(range(len(program.inputs), len(args))))
    bare = dataclasses.replace(program, calls=(call,), constants=())
    return dataclasses.replace(
        package, program=bare, objects={"naive": naive_object(text, machine, vectors)}, constants=[]
    )


# ---- measuring -----------------------------------------------------------------------------------------------------


def measure(name: str, target: str) -> dict:
    model = onnx.load(HERE / "models" / f"{name}.onnx")
    model = quantize(model, normal_inputs(model), integers=True)
    machine = next(m for m in MACHINES if m.name == target)
    executable = tw.compile(model, target=target)
    t = executable.inputs[0]
    x = np.random.default_rng(1).integers(-128, 128, t.shape).astype(np.int8)
    ours = executable._target.emulate(executable.package, [[x]])
    text = NaiveProgram(model).text("naive")
    row = {
        "model": name,
        "target": target,
        "instructions": ours.instructions,
        "text_bytes": ours.sections["text"],
        "arena_bytes": ours.sections["arena"],
    }
    for key, vectors in (("scalar_c", False), ("clang_o3", True)):
        if vectors and machine.vector_bytes < 16:
            continue
        package = naive_package(executable, text, machine, vectors)
        other = executable._target.emulate(package, [[x]])
        if not np.array_equal(other.outputs[0][0], ours.outputs[0][0]):
            raise SystemExit(f"{name} on {target}: the naive kernels give other numbers")
        row[key] = other.instructions
    row["ratio"] = round(row["instructions"] / row["scalar_c"], 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--targets", default="cortex-m4,cortex-m55")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    rows = []
    for target in options.targets.split(","):
        for name in options.models.split(","):
            rows.append(measure(name, target))
            print(rows[-1], flush=True)
    write(rows, options.out)


def write(rows: list[dict], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    version = subprocess.run([clang(), "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    data = {"clang": version, "python": platform.python_version(), "bounds": BOUNDS, "rows": rows}
    (folder / "microcontrollers.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = [
        "# int8 models on simulated microcontrollers",
        "",
        "Instructions of one run (QEMU, `-icount shift=0`), ours against naive scalar C compiled with `clang -O3`; "
        "the outputs are equal bit for bit. On a Cortex-M55 also the same C with clang's own vectorizer on. "
        "Made by `benchmarks/microcontrollers.py`.",
        "",
        "| target | model | instructions | scalar C | ratio | bound | clang, vectorized | code, bytes | arena, bytes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        other = f"{r['clang_o3']:,}" if "clang_o3" in r else ""
        lines.append(
            f"| {r['target']} | {r['model']} | {r['instructions']:,} | {r['scalar_c']:,} | {r['ratio']} | "
            f"{BOUNDS.get(r['target'], '')} | {other} | {r['text_bytes']:,} | {r['arena_bytes']:,} |"
        )
    (folder / "microcontrollers.md").write_text("\n".join([*lines, "", version, ""]))


if __name__ == "__main__":
    main()
