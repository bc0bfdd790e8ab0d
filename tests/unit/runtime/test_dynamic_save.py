"""Saving a model that specializes itself, and loading it without the compiler."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.driver import specialization
from tilewright.program.package import Package
from tilewright.support.errors import CompileError, PackageError, UsageError
from tilewright.support.options import Options

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def model(rows="n"):
    """Sum of the rows of relu(x @ w) that are not zero, by NonZero; a loop doubles it k times."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((16, 64)).astype(np.float32), "w")
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    true = numpy_helper.from_array(np.array(True), "true")
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Mul", ["v", "two"], ["w2"])],
        "body",
        [
            helper.make_tensor_value_info("i", I64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", F, [64]),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, []), helper.make_tensor_value_info("w2", F, [64])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["sum"], keepdims=0, noop_with_empty_axes=0),
        helper.make_node("NonZero", ["r"], ["at"]),
        helper.make_node("Transpose", ["at"], ["back"]),
        helper.make_node("GatherND", ["r", "back"], ["picked"]),
        helper.make_node("ReduceSum", ["r", "axis"], ["rows"], keepdims=0),
        helper.make_node("Loop", ["k", "true", "rows"], ["y"], body=body),
        helper.make_node("Sub", ["picked", "sum"], ["z"]),
    ]
    axis = numpy_helper.from_array(np.array([0]), "axis")
    inputs = [helper.make_tensor_value_info("x", F, [rows, 16]), helper.make_tensor_value_info("k", I64, [])]
    outputs = [helper.make_tensor_value_info("y", F, [64]), helper.make_tensor_value_info("z", F, ["m"])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, [w, two, true, axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def feed(n=3, k=4):
    return {"x": np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32), "k": np.array(k)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file, and what the model gives for `feed()`."""
    executable = tw.compile(model(), threads=1)
    want = executable(feed())
    path = tmp_path_factory.mktemp("dynamic") / "m.tw"
    executable.save(path)
    return path, want


def test_what_was_made_runs_at_once(saved):
    path, want = saved
    again = tw.load(path, threads=1)
    got = again(feed())
    assert again.compiled == 0
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)
    assert [str(t) for t in again.inputs] == ["x: f32[n, 16]", "k: i64[]"]


def test_new_shapes_after_loading(saved, tmp_path):
    path, _ = saved
    again, fresh = tw.load(path, threads=1), tw.compile(model(), threads=1)
    for n in (2, 5):
        for g, w in zip(again(feed(n, 2)), fresh(feed(n, 2)), strict=True):
            np.testing.assert_array_equal(g, w)
    assert again.compiled > 0
    again.save(tmp_path / "more.tw")
    more = tw.load(tmp_path / "more.tw", threads=1)
    more(feed(2, 2)), more(feed(5, 2)), more(feed())
    assert more.compiled == 0


CODE = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch_mlir", "onnx"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Block())
import numpy as np
import tilewright as tw
from tilewright.support.errors import PackageError
run = tw.load(sys.argv[1], threads=1)
x = np.random.default_rng(3).standard_normal((3, 16)).astype(np.float32)
print(run({"x": x, "k": np.array(4)})[0].shape)
try:
    run({"x": x[:2], "k": np.array(4)})
except PackageError as e:
    print(e)
"""


def test_without_the_compiler(saved):
    done = subprocess.run([sys.executable, "-c", CODE, str(saved[0])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "(64,)" in done.stdout
    assert "was not specialized for these shapes" in done.stdout and "install torch-mlir" in done.stdout


def test_weights_are_kept_once(tmp_path):
    w = numpy_helper.from_array(np.random.default_rng(1).standard_normal((64, 4096)).astype(np.float32), "w")
    nodes = [helper.make_node("Gather", ["w", "i"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("i", I64, ["n"])],
        [helper.make_tensor_value_info("y", F, None)],
        [w],
    )
    path = tmp_path / "w.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    executable = tw.compile(path, threads=1)
    for n in (1, 2, 3):
        executable(np.arange(n))
    assert executable.memory.weights < 1.1 * (64 * 4096 * 4)
    executable.save(tmp_path / "w.tw")
    assert (tmp_path / "w.tw").stat().st_size < 1.2 * (64 * 4096 * 4)
    assert tw.load(tmp_path / "w.tw", threads=1)(np.array([5]))[0].shape == (1, 4096)


def test_damage_is_found(saved, tmp_path):
    data = saved[0].read_bytes()
    (tmp_path / "cut.tw").write_bytes(data[: len(data) // 2])
    with pytest.raises(PackageError, match="truncated"):
        tw.load(tmp_path / "cut.tw")
    broken = bytearray(data)
    broken[5000] ^= 255
    (tmp_path / "flip.tw").write_bytes(broken)
    with pytest.raises(PackageError, match="checksum"):
        tw.load(tmp_path / "flip.tw")
    with pytest.raises(PackageError, match="open shapes"):
        Package.load(saved[0])
    with pytest.raises(UsageError, match="cannot write"):
        tw.load(saved[0]).save(tmp_path / "absent" / "m.tw")


def test_a_graph_with_open_dimensions(tmp_path):
    text = """func.func @main(%x: tensor<?x8xf32> {tw.name = "x"}) -> (tensor<?x8xf32> {tw.name = "y"}) {
      %0 = "tw.softmax"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>
      return %0 : tensor<?x8xf32> }"""
    executable = tw.compile(text, threads=1)
    x = np.random.default_rng(2).standard_normal((2, 8)).astype(np.float32)
    want = executable(x)[0]
    executable.save(tmp_path / "g.tw")
    again = tw.load(tmp_path / "g.tw", threads=1)
    np.testing.assert_array_equal(again(x)[0], want)
    assert again.compiled == 0
    assert again(np.ones((3, 8), np.float32))[0].shape == (3, 8)


def biased(sizes=(1, 16, 17, 64, 255, 256, 257, 300)):
    """Rows plus constants of many sizes in bytes: raw f32, single elements, f16, int4 and external-sized ones."""
    rng, nodes, weights, outputs = np.random.default_rng(5), [], [], []
    for k, n in enumerate(sizes):
        array = rng.standard_normal(n).astype(np.float32)
        given = numpy_helper.from_array(array, f"b{k}")
        if k % 2:
            given = helper.make_tensor(f"b{k}", F, [n], array.tolist())
        half = numpy_helper.from_array(array.astype(np.float16), f"h{k}")
        four = helper.make_tensor(f"q{k}", TensorProto.INT4, [n], rng.integers(-8, 8, n).tolist())
        weights += [given, half, four]
        nodes += [
            helper.make_node("Cast", [f"h{k}"], [f"f{k}"], to=F),
            helper.make_node("Cast", [f"q{k}"], [f"i{k}"], to=F),
            helper.make_node("Sum", ["x", f"b{k}", f"f{k}", f"i{k}"], [f"y{k}"]),
        ]
        outputs.append(helper.make_tensor_value_info(f"y{k}", F, ["n", n]))
    x = helper.make_tensor_value_info("x", F, ["n", 1])
    graph = helper.make_graph(nodes, "net", [x], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("kind", ["proto", "bytes", "file", "external"])
def test_constants_of_all_sizes_are_there_for_new_shapes(kind, tmp_path):
    proto = biased()
    sources = {"proto": lambda: proto, "bytes": proto.SerializeToString, "file": lambda: tmp_path / "m.onnx"}
    if kind == "external":
        onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    elif kind == "file":
        onnx.save(proto, tmp_path / "m.onnx")
    run = tw.compile(sources.get(kind, sources["file"])(), threads=1, specialize="now")
    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    want = run(x)
    run.save(tmp_path / "m.tw")
    for file in tmp_path.glob("m.[od]*"):
        file.unlink()
    again = tw.load(tmp_path / "m.tw", threads=1)
    for n in (3, 2):
        for g, w in zip(again(x[:n]), want, strict=True):
            np.testing.assert_array_equal(g, w[:n])
    assert again.compiled == 1


# ---- the options of a loaded model ----


def softmax():
    x, y = (helper.make_tensor_value_info(n, F, ["n", 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "net", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


#: a value beside the default for every option that a file keeps; `tolerance` goes with precision auto, which is for
#: models of fixed shapes, `pad` with buckets, and `threads` is 1 everywhere here
OTHERS = {
    "target": "c", "precision": "bf16", "arena_limit": 1 << 20, "specializations": 5, "operators": 5000,
    "deadline": 100.0, "winograd": False, "stream": False, "verify": True, "cache": False, "tuned": False,
    "check_indices": True, "specialize": "never", "buckets": {"n": (4, 8)},
    "fast_math": True,
}  # fmt: skip


@pytest.fixture
def built(monkeypatch):
    """The options of every builder of parts; none makes one."""
    seen = []

    def builder(options, *_):
        def build(*_):
            raise CompileError("enough")

        seen.append(options)
        return build

    monkeypatch.setattr(specialization, "builder", builder)
    return seen


def test_every_kept_option_has_another_value():
    assert {*OTHERS, "tolerance", "pad", "threads"} == Options().kept().keys()


@pytest.mark.parametrize("name", OTHERS)
def test_parts_made_after_loading_have_the_same_options(name, built, tmp_path):
    chosen = {name: OTHERS[name]}
    tw.compile(softmax(), threads=1, **chosen).save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=2)
    with pytest.raises(CompileError, match="enough"):
        again.specialize({"x": (3, 8)})
    assert built == [Options(threads=1, **chosen), Options(threads=2, **chosen)]
    staged = again.staged
    assert (staged.limit, staged.operators, staged.deadline) == (
        chosen.get("specializations"), chosen.get("operators"), chosen.get("deadline"),
    )  # fmt: skip
    assert again.options == Options(threads=1, **chosen).kept()  # those of the file, whatever loading asked for


def test_files_of_before_have_the_defaults(built, tmp_path):
    executable = tw.compile(softmax(), threads=1, specializations=5, precision="bf16", specialize="now")
    kept = ("target", "precision", "cache", "tuned", "check_indices", "specialize")
    executable.options = {k: executable.options[k] for k in kept}
    executable.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=1)
    with pytest.raises(CompileError, match="enough"):
        again(np.zeros((3, 8), np.float32))
    assert built[-1] == Options(threads=1, specializations=5, precision="bf16", specialize="now")


def test_files_with_options_of_another_version_are_refused(built, tmp_path):
    executable = tw.compile(softmax(), threads=1)
    executable.options["telepathy"] = True
    executable.save(tmp_path / "m.tw")
    with pytest.raises(PackageError, match="options of another version: unknown option 'telepathy'"):
        tw.load(tmp_path / "m.tw")


def test_no_winograd_after_loading(tmp_path):
    """The same sums in the same order, whether the part was made before the model was saved or after."""
    rng = np.random.default_rng(7)
    weight = numpy_helper.from_array(rng.standard_normal((128, 128, 3, 3)).astype(np.float32), "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    x = helper.make_tensor_value_info("x", F, ["n", 128, 28, 28])
    graph = helper.make_graph([conv], "net", [x], [helper.make_tensor_value_info("y", F, None)], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    image = rng.standard_normal((1, 128, 28, 28)).astype(np.float32)
    run = tw.compile(proto, threads=1, specialize="now", winograd=False)
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=1)
    np.testing.assert_array_equal(again(image)[0], run(image)[0])
    kernels = [c.symbol for _, _, part in again.parts() for c in part.executable.package.program.calls]
    assert kernels and not any("winograd" in k for k in kernels)


def test_a_new_process_compiles_for_new_shapes(saved):
    """It has imported no operator of the front end before."""
    code = CODE.partition("sys.meta_path")[0] + "import numpy as np\nimport tilewright as tw\n"
    code += (
        'x = np.ones((2, 16), np.float32)\nprint(tw.load(sys.argv[1], threads=1)({"x": x, "k": np.array(1)})[0].shape)'
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved[0])], capture_output=True, text=True)
    assert done.returncode == 0 and "(64,)" in done.stdout, done.stderr
