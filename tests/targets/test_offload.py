"""`tw.offload`: operators that a program computes with functions of its own, beside a host."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import tilewright as tw
from tilewright.driver.chip_layers import chip_layers
from tilewright.support.errors import UnsupportedError, UsageError
from tilewright.targets import base
from tilewright.targets.offload.operation import Operation

node = helper.make_node


@pytest.fixture(autouse=True)
def own():
    """Forget what a test registers."""
    yield
    base._ATTACHABLE.clear()


def make(nodes, inputs, outputs, constants):
    def infos(found):
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in found.items()]

    arrays = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "network", infos(inputs), infos(outputs), arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


F32, I64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(0)
WEIGHTS = [RNG.standard_normal(s).astype(np.float32) for s in ((8, 12), (12, 12), (12, 12))]
X = RNG.standard_normal((6, 8)).astype(np.float32)


def layers():
    """Three products, the last two of one shape, with what fusion would put behind them."""
    nodes = [
        node("MatMul", ["x", "w0"], ["a"], "first"),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "w1"], ["c"], "second"),
        node("Relu", ["c"], ["d"]),
        node("MatMul", ["d", "w2"], ["e"], "third"),
        node("Softmax", ["e"], ["y"], axis=-1),
    ]
    constants = {f"w{n}": w for n, w in enumerate(WEIGHTS)}
    return make(nodes, {"x": (F32, [6, 8])}, {"y": (F32, [6, 12])}, constants)


def expected(x):
    y = x @ WEIGHTS[0]
    for w in WEIGHTS[1:]:
        y = np.maximum(y, 0) @ w
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_reference(op):
    """Code that is the operator's own meaning."""

    def code(*arrays):
        n = len(op.operands)
        for made, result in zip(op.reference(*arrays[:n]), arrays[n:], strict=True):
            result[...] = made

    return code


def products(op):
    return op.name == "matmul"


def symbols(run):
    return [c.symbol for c in run._package.program.calls]


# ---- what runs where -------------------------------------------------------------------------------------------------


def test_products_run_in_a_function_and_the_rest_on_the_host():
    built, ran = [], []

    @tw.offload("mine", takes=products)
    def build(op):
        built.append(op)
        w = op.operands[1].value
        assert not w.flags.writeable and op.operands[0].value is None

        def code(x, same, y):
            ran.append(op.nodes)
            assert np.shares_memory(same, w) and x.dtype == np.float32
            return np.matmul(x, w, out=y)

        return code

    run = tw.compile(layers(), target="cpu+mine")
    assert np.abs(run(X)[0] - expected(X)).max() < 1e-6
    assert [str(o) for o in built] == ["matmul(f32[6, 8], f32[8, 12]) -> f32[6, 12]"] + [
        "matmul(f32[6, 12], f32[12, 12]) -> f32[6, 12]"
    ] * 2
    assert [o.nodes for o in built] == ran == [("first",), ("second",), ("third",)]
    for o, w in zip(built, WEIGHTS, strict=True):  # equal kernels have weights of their own
        assert np.array_equal(o.operands[1].value, w)
    kinds = [s.rpartition("_")[0] for s in symbols(run)]
    assert kinds == ["matmul", "relu", "matmul", "relu", "matmul", "softmax"]
    text = str(run.explain())
    assert f"{symbols(run)[0]} runs on mine: matmul(f32[6, 8], f32[8, 12]) -> f32[6, 12]" in text
    assert "relu: not into matmul: another processor computes it" in text


def test_only_what_is_taken_is_kept_apart():
    tw.offload("last", lambda op: op.nodes == ("third",), by_reference)
    run = tw.compile(layers(), target="cpu+last")
    assert np.abs(run(X)[0] - expected(X)).max() < 1e-6
    kinds = [s.rpartition("_")[0] for s in symbols(run)]
    assert kinds == ["matmul_relu", "matmul_relu", "matmul", "softmax"]


def test_what_takes_nothing_changes_nothing():
    tw.offload("none", lambda op: False, by_reference)
    run = tw.compile(layers(), target="cpu+none")
    assert symbols(run) == symbols(tw.compile(layers()))
    assert "none takes nothing of the model" in str(run.explain())


@pytest.mark.parametrize("takes", ["all", "products", "softmax"])
def test_parts_of_tensors_and_several_results(takes):
    """Operands that are slices of a tensor become buffers; a kernel may write several."""
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("Split", ["q"], ["a", "b", "c"], axis=-1, num_outputs=3),
        node("Transpose", ["b"], ["bt"], perm=[1, 0]),
        node("MatMul", ["a", "bt"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "c"], ["o"]),
        node("TopK", ["o", "k"], ["v", "i"]),
    ]
    constants = {"w": WEIGHTS[0], "k": np.array([2])}
    model = make(nodes, {"x": (F32, [6, 8])}, {"v": (F32, [6, 2]), "i": (I64, [6, 2])}, constants)
    choices = {"all": lambda op: True, "products": products, "softmax": lambda op: op.name == "softmax"}
    tw.offload("some", choices[takes], by_reference)
    run = tw.compile(model, target="cpu+some", verify=True)
    a, b, c = np.split(X @ WEIGHTS[0], 3, axis=1)
    e = np.exp(a @ b.T - (a @ b.T).max(1, keepdims=True))
    o = e / e.sum(1, keepdims=True) @ c
    values, places = run(X)
    assert np.array_equal(places, np.argsort(-o, axis=1)[:, :2])
    assert np.abs(values - np.take_along_axis(o, places, 1)).max() < 1e-5


def test_bytes_have_their_signs():
    """Below level 2 integers have no sign; functions see those of the model."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("MaxPool", ["q"], ["p"], kernel_shape=[2, 2]),
        node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.02), "z": np.uint8(100)}
    model = make(nodes, {"x": (F32, [1, 2, 4, 4])}, {"y": (F32, [1, 2, 3, 3])}, constants)
    seen = []
    tw.offload("all", lambda op: seen.append(str(op)) or True, by_reference)
    run = tw.compile(model, target="cpu+all", verify=True)
    x = RNG.standard_normal((1, 2, 4, 4)).astype(np.float32)
    assert np.array_equal(run(x)[0], tw.compile(model)(x)[0])
    assert "max_pool(ui8[1, 2, 4, 4]) -> ui8[1, 2, 3, 3]" in seen


def test_a_model_without_a_host_part():
    model = make([node("Relu", ["x"], ["y"])], {"x": (F32, [4])}, {"y": (F32, [4])}, {})
    tw.offload("all", lambda op: True, by_reference)
    run = tw.compile(model, target="cpu+all")
    assert run(np.float32([-1, 2, -3, 4]))[0].tolist() == [0, 2, 0, 4]


def test_several_threads_run_a_model_at_once():
    tw.offload("mine", products, by_reference)
    run = tw.compile(layers(), target="cpu+mine", threads=2)
    inputs = [RNG.standard_normal((6, 8)).astype(np.float32) for _ in range(24)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: run(x)[0], inputs))
    assert max(np.abs(r - expected(x)).max() for r, x in zip(results, inputs, strict=True)) < 1e-6


# ---- packages --------------------------------------------------------------------------------------------------------


def test_a_saved_package_wants_the_function_again(tmp_path):
    tw.offload("mine", products, by_reference)
    path = tmp_path / "model.tw"
    tw.compile(layers(), target="cpu+mine").save(path)
    ran = []

    def counting(op: Operation):
        code = by_reference(op)
        return lambda *arrays: ran.append(op.name) or code(*arrays)

    tw.offload("mine", products, counting)  # the same name again: packages hold no code
    assert np.abs(tw.load(path)(X)[0] - expected(X)).max() < 1e-6 and len(ran) == 3
    base._ATTACHABLE.clear()
    with pytest.raises(UsageError, match="unknown target 'mine'") as e:
        tw.load(path)
    assert "tw.offload" in e.value.hint


@pytest.mark.parametrize("other", ["mine", "outer4"])
def test_states_beside_a_host(other, tmp_path):
    """A state is the host's memory: a kernel of either may read it and write its next value."""
    tw.offload("mine", lambda op: op.name in ("matmul", "add"), by_reference)
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "past"], ["present"]),
        node("Tanh", ["present"], ["y"]),
    ]
    out = dict.fromkeys(("present", "y"), (F32, [6, 12]))
    model = make(nodes, {"x": (F32, [6, 8]), "past": (F32, [6, 12])}, out, {"w": WEIGHTS[0]})
    made = tw.compile(model, target=f"cpu+{other}", states={"past": "present"}, threads=1)
    assert f" runs on {other}: " in str(made.explain())
    made.save(tmp_path / "m.tw")
    for run in (made, tw.load(tmp_path / "m.tw", threads=1)):
        for n in (1, 2, 3):
            assert np.abs(run(X)[0] - np.tanh(n * (X @ WEIGHTS[0]))).max() < 1e-5


def test_a_profile_times_the_functions():
    tw.offload("mine", products, by_reference)
    found = tw.compile(layers(), target="cpu+mine", threads=1).profile([X], repeats=2).kernels
    assert {k.symbol.partition("_")[0] for k in found} > {"matmul"} and all(k.seconds > 0 for k in found)


def test_packages_need_no_mlir(tmp_path):
    tw.offload("mine", products, by_reference)
    path = tmp_path / "model.tw"
    tw.compile(layers(), target="cpu+mine").save(path)
    code = f"""
import sys
import numpy as np
import tilewright as tw
tw.offload("mine", lambda op: True, lambda op: lambda x, w, y: np.copyto(y, x @ w))
y, = tw.load({str(path)!r})(np.ones((6, 8), np.float32))
assert abs(y.sum() - 6) < 1e-5, y
assert "torch_mlir" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- errors ----------------------------------------------------------------------------------------------------------

ONE = make([node("Relu", ["x"], ["y"], "it")], {"x": (F32, [4])}, {"y": (F32, [4])}, {})


@pytest.mark.parametrize(
    ("takes", "build", "message", "stage"),
    [
        (lambda op: op.wings, None, "`takes` of mine failed: AttributeError", "lower"),
        (lambda op: True, lambda op: 1 // 0, "`build` of mine failed: ZeroDivisionError", "load"),
        (lambda op: True, lambda op: 3, "`build` of mine returned int, which cannot be called", "load"),
        (lambda op: True, lambda op: lambda x, y: np.copyto(y, np.ones(5)), "the code of mine failed: Value", "run"),
        (lambda op: True, lambda op: lambda x, y: x.fill(0), "the code of mine failed: .* read-only", "run"),
        (lambda op: True, lambda op: lambda x: None, "the code of mine failed: TypeError", "run"),
        (lambda op: True, lambda op: lambda x, y: x, "the code of mine returned ndarray", "run"),
    ],
)
def test_errors_of_users_name_the_operation(takes, build, message, stage):
    tw.offload("mine", takes, build or by_reference)
    with pytest.raises(UsageError, match=message) as e:
        tw.compile(ONE, target="cpu+mine")(np.zeros(4, np.float32))
    assert e.value.stage.startswith(stage) and e.value.operator == "relu(f32[4]) -> f32[4] it"


def test_names():
    tw.offload("mine", products, by_reference)
    for name, message in {
        "cpu+yours": "unknown target 'yours'",
        "mine": "mine is no target alone",
        "cpu+mine:size=2": "unknown target 'mine:size=2'",
        "cpu+cpu": "cpu cannot stand beside cpu",
    }.items():
        with pytest.raises(UsageError, match=message):
            base.find(name)
    for name, message in {"cpu": "a target 'cpu' already", "a+b": "'a\\+b' is no name", "": "'' is no name"}.items():
        with pytest.raises(UsageError, match=message):
            tw.offload(name, products, by_reference)


def test_a_file(tmp_path):
    file = tmp_path / "mine.py"
    body = "import numpy as np\nimport tilewright as tw\n"
    file.write_text(body + 'CHIP = tw.offload("mine", lambda op: True, lambda op: lambda x, y: np.copyto(y, x + 1))')
    run = tw.compile(ONE, target=f"cpu+{file}")
    assert run(np.zeros(4, np.float32))[0].tolist() == [1, 1, 1, 1] and run._package.target == "cpu+mine"
    with pytest.raises(UsageError, match=r"mine in .* has no parameters"):
        base.find(f"cpu+{file}:size=1")
    with pytest.raises(UsageError, match=r"mine\.py is no target alone"):
        base.find(str(file))
    file.write_text(body)
    with pytest.raises(UsageError, match="describes no chip"):
        base.find(f"cpu+{file}")


def test_no_chip_is_simulated(tmp_path):
    tw.offload("mine", products, by_reference)
    save(layers(), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"'cpu\+mine' has no chip"):
        chip_layers(tmp_path / "model.onnx", "cpu+mine")
    with pytest.raises(UsageError, match="mine computes it"):
        tw.compile(layers(), target="cpu+mine", schedules={"matmul": 's.split("i0", 2)'})


def test_open_sizes_are_refused_as_for_chips():
    tw.offload("mine", products, by_reference)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    model = make(nodes, {"x": (F32, ["n", 8])}, {"y": (F32, ["n", 12])}, {"w": WEIGHTS[0]})
    with pytest.raises(UnsupportedError, match=r"'cpu\+mine' has no open dimensions"):
        tw.compile(model, target="cpu+mine", inputs={"x": (tw.Dim("n", 1, 16), 8)})
