"""Models on the devices that have a driver here: right as on the processor, for every kind of operator and number."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.gpus import device_of

import tilewright as tw
from tilewright.support.errors import UsageError


@pytest.fixture(scope="module", params=["opencl", "vulkan", "vulkan:text=spirv"])
def target(request):
    device_of(request.param.partition(":")[0])
    return request.param


def model(text: str, **constants: np.ndarray):
    """A model in ONNX's own text form; constants are filled in by name."""
    from onnx import numpy_helper, parser

    made = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> m {text}')
    for name, value in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(value, name))
    return made


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


def same(made, inputs, target, rtol=1e-5):
    """Outputs as those of the processor, relative to the largest value."""
    want = tw.compile(made, target="cpu")(*inputs)
    run = tw.compile(made, target=target)
    for _ in range(2):  # a recorded run can be repeated
        for got, w in zip(run(*inputs), want, strict=True):
            assert got.dtype == w.dtype and got.shape == w.shape
            if w.dtype.kind == "f":
                scale = max(np.abs(w.astype("f8")).max(initial=0), 1e-30)
                assert np.abs(got.astype("f8") - w.astype("f8")).max(initial=0) <= rtol * scale
            else:
                assert (got == w).all()
    return run


def test_a_perceptron_with_softmax(target):
    made = model(
        "(float[5, 64] x) => (float[5, 10] y) { a = MatMul(x, w) b = Add(a, c) d = Tanh(b) y = Softmax<axis=1>(d) }",
        w=drawn(0, 64, 10), c=drawn(1, 10),
    )  # fmt: skip
    same(made, [drawn(2, 5, 64)], target)


def test_a_convolution_with_pool_and_norm(target):
    made = model(
        """(float[2, 3, 17, 15] x) => (float[2, 8] y) {
            a = Conv<pads=[1, 1, 1, 1], strides=[2, 1]>(x, w, b)
            c = Relu(a)
            d = MaxPool<kernel_shape=[3, 3], strides=[2, 2]>(c)
            e = Conv<group=8, pads=[1, 1, 1, 1]>(d, v)
            f = Clip(e, zero, six)
            g = GlobalAveragePool(f)
            y = Flatten(g) }""",
        w=drawn(0, 8, 3, 3, 3), b=drawn(1, 8), v=drawn(2, 8, 1, 3, 3), zero=np.float32(0), six=np.float32(6),
    )  # fmt: skip
    same(made, [drawn(3, 2, 3, 17, 15)], target)


def test_convolutions_whose_results_are_padded_for_the_next(target):
    """Tiles that reach beyond the rows of a result, which has a border: nothing of them may be written to it."""
    made = model(
        """(float[1, 64, 10, 10] x) => (float[1, 8, 10, 10] y) {
            a = Conv(x, w, b) c = Relu(a) y = Conv<pads=[1, 1, 1, 1]>(c, v) }""",
        w=drawn(0, 256, 64, 1, 1), b=drawn(1, 256) + 4, v=drawn(2, 8, 256, 3, 3),
    )  # fmt: skip
    same(made, [drawn(3, 1, 64, 10, 10)], target)


def test_attention(target):
    made = model(
        """(float[2, 4, 19, 16] q, float[2, 4, 16, 19] k, float[2, 4, 19, 16] v) => (float[2, 4, 19, 16] y) {
            a = MatMul(q, k) b = Mul(a, scale) c = Softmax<axis=-1>(b) y = MatMul(c, v) }""",
        scale=np.float32(0.25),
    )
    same(made, [drawn(0, 2, 4, 19, 16), drawn(1, 2, 4, 16, 19), drawn(2, 2, 4, 19, 16)], target)


def test_numbers_of_all_kinds(target):
    made = model(
        """(int64[7, 5] x, int8[7, 5] z, float16[7, 5] h) => (bool[7, 5] y, int64[7, 5] s, int8[7, 5] t,
            float16[7, 5] u, float[7, 5] e, int64[7, 2] top) {
            f = Cast<to=7>(z) y = Less(x, f) s = Where(y, x, f) t = Cast<to=3>(s) u = Mul(h, h)
            i = Cast<to=1>(x) w = Mul(i, small) e = Erf(w) v, top = TopK(w, two) }""",
        small=np.float32(0.1), two=np.array([2]),
    )  # fmt: skip
    random = np.random.default_rng(4)
    inputs = [random.integers(-90, 90, (7, 5)), random.integers(-90, 90, (7, 5)).astype("i1")]
    same(made, [*inputs, drawn(5, 7, 5).astype("f2")], target)


def test_parts_of_results_that_are_written_in_place(target):
    made = model(
        "(float[3, 7] x) => (float[3, 15] y) { a = Exp(x) b = Relu(x) y = Concat<axis=1>(a, b, one) }",
        one=np.ones((3, 1), "f4"),
    )  # fmt: skip
    same(made, [drawn(6, 3, 7)], target)


def test_a_model_without_kernels(target):
    made = model("(float[2, 6] x) => (float[3, 4] y) { y = Reshape(x, s) }", s=np.array([3, 4]))
    same(made, [drawn(7, 2, 6)], target)


def test_the_digits(target, digits_path, digits_cases):
    images, probabilities, labels = digits_cases
    run = tw.compile(digits_path, target=target, inputs={"image": (64, 1, 8, 8)})
    got = run(images[:64])[0]
    np.testing.assert_allclose(got, probabilities[:64], atol=1e-4)
    assert (got.argmax(1) == labels[:64]).mean() > 0.9


def test_packages_keep_their_kernels(target, tmp_path):
    made = model("(float[4] x) => (float[4] y) { y = Exp(x) }")
    run = tw.compile(made, target=target)
    run.save(tmp_path / "m.tw")
    x = drawn(8, 4)
    assert (tw.load(tmp_path / "m.tw")(x)[0] == run(x)[0]).all()


@pytest.mark.parametrize(("name", "module"), [("opencl", "pyopencl"), ("vulkan", "wgpu")])
def test_without_a_driver_there_is_one_clear_error(name, module, monkeypatch):
    made = model("(float[4] x) => (float[4] y) { y = Exp(x) }")
    monkeypatch.setitem(sys.modules, module, None)
    __import__(f"tilewright.targets.{name}.device")
    device = sys.modules[f"tilewright.targets.{name}.device"]
    device.DEVICES.forget()
    with pytest.raises(UsageError, match=f"the target {name} needs {module}, which is not installed") as e:
        tw.compile(made, target=name)(drawn(9, 4))
    assert f"pip install 'tilewright[{name}]'" in str(e.value)
