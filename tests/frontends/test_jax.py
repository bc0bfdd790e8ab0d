"""Programs of JAX, exported and compiled, against JAX's own results."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.support.errors import InputError, TilewrightError, UnsupportedError, UsageError  # noqa: E402

f32 = np.float32


def array(*shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values * 4).astype(dtype) if dtype != np.float32 else values.astype(np.float32)


def ints(*shape, high=7, seed=0, dtype=np.int32):
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def export(f, *args):
    specs = jax.tree_util.tree_map(lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype), args)
    return jax.export.export(jax.jit(f))(*specs)


def same(got, expected, tolerance=1e-5):
    got, expected = (jax.tree_util.tree_flatten(v) for v in (got, expected))
    assert got[1] == expected[1]
    for g, e in zip(got[0], expected[0], strict=True):
        e = np.asarray(e)
        assert g.shape == e.shape and g.dtype == e.dtype
        if e.dtype.kind in "biu":
            np.testing.assert_array_equal(g, e)
        else:
            near = 1e-2 if e.dtype.itemsize == 2 else tolerance
            np.testing.assert_allclose(g.astype(np.float64), e.astype(np.float64), rtol=near, atol=near)


PROGRAMS = {}


def program(*args):
    def register(f):
        PROGRAMS[f.__name__] = f, args
        return f

    return register


# ---- networks ------------------------------------------------------------------------------------------------------


@program(array(2, 8, 8, 3), array(3, 3, 3, 4, seed=1), array(3, 3, 4, 8, seed=2), array(32, 10, seed=3))
def cnn(x, w1, w2, w3):
    dims = ("NHWC", "HWIO", "NHWC")
    x = jax.nn.relu(lax.conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=dims))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.gelu(lax.conv_general_dilated(x, w2, (2, 2), ((1, 1), (1, 1)), dimension_numbers=dims))
    return jax.nn.log_softmax(x.reshape(2, -1) @ w3)


@program(array(2, 6, 16), *[array(16, 16, seed=i) for i in range(1, 5)], array(16, seed=5))
def attention_block(x, wq, wk, wv, wo, scale):
    def heads(v):
        return v.reshape(2, 6, 4, 4).transpose(0, 2, 1, 3)

    mean = x.mean(-1, keepdims=True)
    h = (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale
    q, k, v = heads(h @ wq), heads(h @ wk), heads(h @ wv)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2
    scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
    return x + mixed.transpose(0, 2, 1, 3).reshape(2, 6, 16) @ wo


@program(array(5, 3, 4), array(4, 24, seed=1), array(6, 24, seed=2), array(24, seed=3))
def lstm(xs, w, u, b):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((3, 6))
    return lax.scan(step, (zero, zero), xs)


@program({"w": array(4, 8), "b": [array(8), array(3)], "v": array(8, 3, seed=1)}, array(5, 4), ints(5, high=3))
def gradients(params, x, labels):
    def loss(p):
        h = jnp.tanh(x @ p["w"] + p["b"][0])
        scores = jax.nn.log_softmax(h @ p["v"] + p["b"][1])
        return -jnp.take_along_axis(scores, labels[:, None], 1).mean()

    return jax.value_and_grad(loss)(params)


@program(array(1, 6, 6, 2), array(2, 2, 2, 3, seed=1))
def conv_gradients(x, w):
    def loss(x, w):
        y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
        return (y * y).sum()

    return jax.grad(loss, (0, 1))(x, w)


# ---- convolution and windows ---------------------------------------------------------------------------------------


@program(array(2, 4, 9), array(6, 2, 3, seed=1))
def conv_groups(x, w):
    return lax.conv_general_dilated(x, w, (2,), [(2, 1)], rhs_dilation=(2,), feature_group_count=2)


@program(array(1, 5, 5, 2), array(3, 3, 4, 2, seed=1))
def conv_transposed(x, w):
    return lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=True)


@program(array(5, 3, 2, 6), array(2, 4, 2, 2, seed=1))
def conv_any_layout(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), ((-1, 2), (1, 0)), lhs_dilation=(2, 1), dimension_numbers=("HNCW", "IOWH", "CWNH")
    )


@program(array(6, 2, 7), array(4, 2, 3, seed=1))
def conv_batch_groups(x, w):
    return lax.conv_general_dilated(x, w, (1,), "VALID", batch_group_count=2)


@program(array(2, 7, 6, 3))
def pools(x):
    window, steps = (1, 3, 2, 1), (1, 2, 2, 1)
    total = lax.reduce_window(x, 0.0, lax.add, window, steps, "SAME")
    count = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, window, steps, "SAME")
    low = lax.reduce_window(x, jnp.inf, lax.min, (1, 5, 1, 1), (1, 1, 1, 1), "SAME", window_dilation=(1, 2, 1, 1))
    first = lax.reduce_window(x, 0.5, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", base_dilation=(1, 2, 1, 1))
    return total / count, low, first


@program(array(3, 7), ints(3, 7))
def running(x, i):
    return (
        jnp.cumsum(x, 1), jnp.cumsum(i, 0), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cummin(i, 1, reverse=True),
        lax.cumlogsumexp(x, 1), lax.associative_scan(jnp.add, x, axis=1),
    )  # fmt: skip


# ---- products and reductions ---------------------------------------------------------------------------------------


@program(array(2, 3, 4, 5), array(5, 2, 6, 3, seed=1), ints(4, 3, dtype=np.int8), ints(3, 2, dtype=np.int8))
def products(x, y, a, b):
    return (
        lax.dot_general(x, y, (((3,), (0,)), ((0, 1), (1, 3)))),
        jnp.einsum("abcd,dbea->ce", x, y.transpose(0, 3, 2, 1)),
        x[0, 0, 0] @ y[:, 0, 0, 0],
        lax.dot(a, b, preferred_element_type=jnp.int32),
        jnp.outer(x[0, 0, 0], y[0, 0, :, 0]),
    )


@program(array(4, 6).astype(jnp.bfloat16), array(6, 3, seed=1).astype(jnp.bfloat16))
def half_product(x, y):
    return lax.dot(x, y, preferred_element_type=jnp.float32), jnp.tanh(x).sum(1)


@program(array(3, 5, 4), ints(3, 5, 4))
def reductions(x, i):
    return (
        x.sum((0, 2)), x.max(1), x.min(), x.prod(2), x.var(0), i.sum(0), i.max(1), (x > 0).any(1), (x > 0).all((0, 1)),
        jnp.argmax(x, 1), jnp.argmin(i, 2), jnp.argmax(x), jax.nn.logsumexp(x, 1), jnp.median(x, 2),
        jnp.bitwise_xor.reduce(i, 1), jnp.count_nonzero(i > 3),
    )  # fmt: skip


@program(array(4, 5), ints(4, 5))
def reduce_any_body(x, i):
    def body(a, b):
        (x, i), (y, j) = a, b
        return jnp.where(i < j, x - 0 * y, y), jnp.minimum(i, j)

    return lax.reduce((x, i), (f32(2), np.int32(4)), body, (1,))


# ---- positions -----------------------------------------------------------------------------------------------------


@program(array(6, 5, 4), np.array([[0, 5], [9, -3]], np.int32), np.int32(2))
def gathers(x, i, k):
    return (
        jnp.take(x, i, 0), jnp.take(x, i, 1, mode="clip"), x[i], x[:, i, 1], x[i, :, i[::-1]], x[k], x[..., k, 1:3],
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1), x.at[i].get(mode="fill", fill_value=7), x[1:5:2, ::-1],
    )  # fmt: skip


@program(array(6, 5), array(2, 2, seed=1), np.array([[0, 5], [9, -3]], np.int32))
def batched_gather(x, y, i):
    rows = jax.vmap(lambda row, k: row[k])(x[:2], i)
    windows = jax.vmap(lambda k: lax.dynamic_slice(x, (k, k), (2, 3)))(i.reshape(-1))
    return rows, windows


@program(array(6, 4), np.array([1, 3, 1, 17, -2], np.int32), array(5, 4, seed=1), ints(6, 4))
def scatters(x, i, u, m):
    return (
        x.at[i].add(u), x.at[i[:2]].set(u[:2]), x.at[i].max(u), x.at[i].min(u), x.at[i].mul(u), x.at[1:3].set(0),
        x.at[:, i[:3]].add(u[0, 0]), m.at[i, i % 4].add(2),
        (m > 3).at[i].set(True), x.at[2, 1].set(9), jax.ops.segment_sum(u, i % 3, 3),
    )  # fmt: skip


@program(array(3, 6), np.array([1, 5, -9], np.int32), array(3, 2, seed=1))
def batched_scatter(x, i, u):
    one = jax.vmap(lambda row, k, v: row.at[k].add(v[0]))(x, i, u)
    windows = jax.vmap(lambda row, k, v: lax.dynamic_update_slice(row, v, (k,)))(x, i, u)
    return one, windows


@program(array(6, 5), array(2, 3, seed=1), np.int32(3), np.int32(-7))
def dynamic_slices(x, u, i, j):
    return (
        lax.dynamic_slice(x, (i, j), (2, 3)), lax.dynamic_update_slice(x, u, (i, j)),
        lax.dynamic_update_slice(x, u, (1, 1)), lax.dynamic_index_in_dim(x, i, 0),
        lax.dynamic_update_index_in_dim(x, x[0] * 2, i, 0),
    )  # fmt: skip


# ---- order ---------------------------------------------------------------------------------------------------------


@program(array(4, 9), ints(4, 9, high=4), np.array([2.0, np.nan, -0.0, 0.0, -np.inf, np.inf, -1.0], f32))
def sorts(x, i, odd):
    return (
        jnp.sort(x, 0), jnp.sort(i, 1, descending=True), jnp.argsort(x, 1), jnp.argsort(i, 1, stable=True),
        lax.sort((i, x), dimension=1, num_keys=2), lax.sort((i, x), dimension=1, num_keys=1), jnp.sort(odd),
        jnp.argsort(odd), jnp.lexsort((x[0], i[0])), lax.top_k(x, 3), jnp.searchsorted(jnp.sort(x[0]), x[1]),
    )  # fmt: skip


# ---- control flow --------------------------------------------------------------------------------------------------


@program(array(4), np.int32(1), f32(0.5))
def branches(x, k, t):
    a = lax.cond(t > 0, lambda v: v * 2, lambda v: v - 1, x)
    b = lax.switch(k, [jnp.sin, jnp.cos, lambda v: v * v], x)
    c = lax.switch(k + 7, [jnp.sin, jnp.cos, lambda v: v * v], x)
    return a, b, c


@program(array(4, 3))
def known_loops(x):
    a = lax.fori_loop(0, 4, lambda i, v: v + i * x, x)
    b = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x))
    _, c = lax.scan(lambda s, row: (s + row, s * row), jnp.zeros(3), x, reverse=True)
    return a, b, c, lax.map(lambda row: row.sum(), x)


# ---- spectra, random numbers, elementwise --------------------------------------------------------------------------


@program(array(3, 12), array(4, 6, seed=1))
def ffts(x, y):
    z = jnp.fft.fft(x + 1j * x[:, ::-1])
    back = jnp.fft.ifft(z * jnp.exp(1j * x))
    return (
        jnp.abs(z), z.real, back.imag, jnp.fft.irfft(jnp.fft.rfft(x) * 2), jnp.abs(jnp.fft.fft2(y)),
        jnp.fft.irfft(jnp.fft.rfft(x[:, :7]), 7), jnp.angle(z[:, 1:3] / (z[:, 3:5] + 1)),
    )  # fmt: skip


@program(np.array([3, 4], np.uint32))
def random_numbers(key):
    key = jax.random.wrap_key_data(key)
    a, b = jax.random.split(key)
    return (
        jax.random.normal(a, (3, 4)), jax.random.uniform(b, (5,)), jax.random.randint(b, (6,), 0, 9),
        jax.random.permutation(a, 5), jax.random.bernoulli(a, 0.3, (4,)), jax.random.key_data(b),
    )  # fmt: skip


@program(array(5, 7), np.abs(array(5, 7, seed=1)) + f32(0.1))
def functions(x, y):
    return (
        jnp.exp(x), jnp.log(y), jnp.expm1(x), jnp.log1p(y), jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.tanh(x),
        jnp.arctan2(x, y), jnp.arcsinh(x), jnp.arccosh(y + 1), jnp.arctanh(x / 9), jnp.sinh(x), jnp.cosh(x),
        jnp.sqrt(y), lax.rsqrt(y), jnp.cbrt(x), jnp.power(y, x), jax.lax.erf(x), jax.lax.erfc(x), lax.erf_inv(x / 9),
        lax.lgamma(y), lax.digamma(y), jax.nn.silu(x), jax.nn.softplus(x), jnp.hypot(x, y), jnp.arcsin(x / 9),
        jnp.floor(x * 3), jnp.ceil(x * 3), jnp.round(x * 3), lax.round(x * 2), jnp.sign(x), jnp.clip(x, -1, 1),
        jnp.mod(x, y), lax.rem(x, y), jnp.logaddexp(x, y), jnp.nextafter(x, y), jnp.isfinite(x), x**3, jnp.abs(x),
    )  # fmt: skip


@program(ints(11, high=1000) - 500, ints(11, high=4, seed=1), ints(11, high=40, seed=2, dtype=np.uint32))
def integers(x, y, u):
    return (
        x // y, x % y, lax.div(x, y), lax.rem(x, y), x & y, x | y, x ^ y, ~x, x << y, x >> y, u >> y.astype(np.uint32),
        lax.shift_right_logical(x, y), lax.population_count(x), lax.clz(u), jnp.maximum(x, y), -x, -u, abs(x), x**3,
        jnp.sign(x), x > y, u < u[::-1], (x > 0) < (y > 1), lax.div(u, u[::-1] * 0), x.astype(jnp.int8),
    )  # fmt: skip


@program(np.array([0.5, -1.5, 300.0, -3e9, 3e9, np.nan, np.inf, -np.inf], f32), ints(4))
def conversions(x, i):
    return (
        x.astype(jnp.int32), x.astype(jnp.int8), x.astype(jnp.uint8), x.astype(jnp.uint32), x.astype(bool),
        x[:3].astype(jnp.bfloat16), x[:3].astype(jnp.float16), i.astype(jnp.float32), i.astype(bool),
        lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(i, jnp.float32), lax.reduce_precision(x, 8, 7),
    )  # fmt: skip


@program(array(3, 4), f32(2.5))
def shapes(x, v):
    return (
        lax.pad(x, v, ((1, 2, 1), (0, -1, 2))), lax.pad(x, f32(0), ((-1, 1, 0), (-1, -1, 1))), jnp.pad(x, 2, "reflect"),
        x.reshape(2, 6).T, jnp.concatenate([x, x[:1]]), x[:, ::-2], jnp.tile(x, (2, 2)), jnp.roll(x, 1, 1),
        jnp.arange(5) * 2, jnp.linspace(0, 1, 5), jnp.eye(3), jnp.repeat(x, 2, 0), jnp.stack([x, x], 1),
        lax.broadcast_in_dim(x, (2, 3, 4), (1, 2)), lax.optimization_barrier(x), jnp.tri(3, 4), x[:0],
        jnp.pad(x > 0, 1), jnp.kron(x, x[:2, :2]), jnp.diag(x[0]), jnp.diagonal(x), jnp.triu(x),
    )  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    f, args = PROGRAMS[name]
    same(tw.compile(export(f, *args), threads=1)(*args), jax.jit(f)(*args))


# ---- loops and branches that depend on data, sizes that are open ---------------------------------------------------


def steps_until(x, n):
    def step(s):
        i, v = s
        return i + 1, lax.while_loop(lambda t: t.max() > 1, lambda t: t / 2, v + x)

    steps, y = lax.while_loop(lambda s: s[0] < n, step, (0, x))
    z = lax.cond(x[0, 0] > 3, lambda v: lax.while_loop(lambda t: t.max() > 1, lambda t: t / 3, v), lambda v: v + y, x)
    return steps, y, z, jnp.sort(z), lax.fori_loop(0, n, lambda i, v: v + i * x, x)


def test_loops_that_depend_on_data(tmp_path):
    start = np.arange(6, dtype=f32).reshape(2, 3)
    run = tw.compile(export(steps_until, start, np.int32(4)), threads=1)
    run.executable.save(tmp_path / "loop.tw")
    loaded = tw.load(tmp_path / "loop.tw")
    for x, n in ((start, 4), (start + 4, 0), (start / 9, 2)):
        expected = jax.jit(steps_until)(x, np.int32(n))
        same(run(x, np.int32(n)), expected)
        same(tuple(loaded(x, np.array(n, np.int32))), expected)


def test_what_loops_carry_and_branches_have(tmp_path):
    """Complex numbers, values of many types in any order, three ways of which one loops, sizes that are open."""

    def f(x, k):
        def step(s):
            n, z, w, big = s
            return n + 1, z * (1 + 1j) + x, w > n, big * 2

        state = jnp.int32(0), x + 0j, jnp.array(True), x.astype(jnp.float16)
        n, z, w, big = lax.while_loop(lambda s: jnp.abs(s[1]).sum() < 50, step, state)
        ways = lambda v: v + 1, lambda v: lax.while_loop(lambda t: t.max() > 1, lambda t: t / 2, v), lambda v: v * x
        return n, z.real, z.imag, w, big, lax.switch(k, ways, x)

    fixed = tw.compile(export(f, array(2, 3), np.int32(0)), threads=1)
    dims = jax.export.symbolic_shape("b, 3")
    specs = jax.ShapeDtypeStruct(dims, np.float32), jax.ShapeDtypeStruct((), np.int32)
    run = tw.compile(jax.export.export(jax.jit(f))(*specs), threads=1)
    run(array(2, 3), np.int32(1))
    run.executable.save(tmp_path / "open.tw")
    loaded = tw.load(tmp_path / "open.tw")
    for k in range(3):
        x = array(2, 3, seed=k) + k
        expected = jax.jit(f)(x, np.int32(k))
        same(fixed(x, np.int32(k)), expected)
        same(run(x, np.int32(k)), expected)
        same(tuple(loaded(x, np.array(k, np.int32))), expected)
    x = array(4, 3)
    same(tuple(loaded(x, np.array(1, np.int32))), jax.jit(f)(x, np.int32(1)))


def test_long_loops_are_not_unrolled():
    def f(x):
        return lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), jnp.zeros(3), jnp.tile(x, (900, 1)))

    x = array(2, 3)
    run = tw.compile(export(f, x), threads=1)
    assert "Dynamic" in repr(run)
    same(run(x), jax.jit(f)(x))


def symbolic(f, *shapes):
    dims = jax.export.symbolic_shape("b, 2*c")
    scope = dict(zip("bc", dims, strict=True))
    specs = [jax.ShapeDtypeStruct(tuple(scope.get(d, d) for d in s), np.float32) for s in shapes]
    return jax.export.export(jax.jit(f))(*specs)


def test_open_sizes(tmp_path):
    def f(x, y):
        z = jnp.concatenate([x, x * 2]) @ y
        top = lax.top_k(lax.erf(x), 1)
        return jax.nn.softmax(z), top, x.reshape(-1), x.mean(0), jnp.cumsum(x, 1) + x[:, :1] + x.shape[0], x[::2]

    exported = symbolic(f, ("b", "c"), ("c", 3))
    run = tw.compile(exported, threads=1)
    run.executable.save(tmp_path / "open.tw")
    loaded = tw.load(tmp_path / "open.tw")
    assert [i.name for i in run.executable.inputs] == ["x", "y"]
    for b, c in ((3, 4), (1, 2)):
        x, y = array(b, c), array(c, 3, seed=1)
        same(run(x, y), f(x, y))
        same(loaded(x, y), jax.tree_util.tree_leaves(f(x, y)))
    for c in (4, 3):  # y has 3 rows; c is even
        with pytest.raises(UsageError, match="not a program for these shapes"):
            run(array(2, c), array(3, 3))
    x, y = array(2, 4), array(4, 3)
    same(tw.compile(exported, inputs={"x": (2, 4), "y": (4, 3)}, threads=1)(x, y), f(x, y))
    for inputs, why in (({"x": (2, 4, 1)}, "not of shape"), ({"z": (2,)}, "no input 'z'")):
        with pytest.raises(UsageError, match=why):
            tw.compile(exported, inputs=inputs)
    with pytest.raises(UnsupportedError, match="ranges of sizes"):
        tw.compile(exported, inputs={"x": (tw.Dim("b", 1, 8), 4), "y": (4, 3)})


# ---- what goes in and out ------------------------------------------------------------------------------------------


def test_text_and_bytes(tmp_path):
    f, args = PROGRAMS["attention_block"]
    exported = export(f, *args)
    expected = [np.asarray(f(*args))]
    path = tmp_path / "block.mlirbc"
    path.write_bytes(exported.mlir_module_serialized)
    for source in (exported.mlir_module(), exported.mlir_module_serialized, path):
        run = tw.compile(source, threads=1)
        same(run(*args), expected)
        assert [i.name for i in run.inputs] == ["x", "wq", "wk", "wv", "wo", "scale"]
    again = jax.export.deserialize(exported.serialize())
    same(tw.compile(again, threads=1)(*args), expected[0])


def test_patterns_are_found():
    """Softmax, norms and attention, as JAX writes them, are the operators that are fast."""
    f, args = PROGRAMS["attention_block"]
    graph = tw.compile(export(f, *args), stop_after="layout")
    names = [op.name for op in graph.operations()]
    assert names.count("tw.attention") == names.count("tw.layer_norm") == 1 and "tw.exp" not in names


def test_nested_arguments():
    def f(p, unused, key, *, k=2.0):
        return {"y": p["a"] * k + jax.random.normal(key, (3,)), "n": (p["b"][0] + 1,)}

    key = jax.random.key(3)
    args = {"a": array(3), "b": [np.int32(4)]}, array(2), key
    exported = jax.export.export(jax.jit(f))(*jax.tree_util.tree_map(jnp.asarray, args[:2]), key, k=2.0)
    run = tw.compile(exported, threads=1)
    same(run(*args, k=3.0), f(*args, k=3.0))
    same(
        run({"a": jnp.ones(3), "b": [np.int32(4)]}, args[1], key, k=1),
        f({"a": jnp.ones(3), "b": [np.int32(4)]}, args[1], key, k=1),
    )
    with pytest.raises(InputError, match="the arguments are"):
        run(args[0], key)
    with pytest.raises(InputError):
        run({"a": array(4), "b": [np.int32(4)]}, *args[1:], k=1.0)


def test_entries():
    x = array(3, 4)
    run = tw.compile({"sine": export(jnp.sin, x), "double": export(lambda x: x * 2, x)}, threads=1)
    same([run["sine"](x)[0], run["double"](x)[0]], [np.sin(x), x * 2])


def test_platforms_and_shardings():
    x = array(3, 4)

    def f(x):
        y = lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)
        return lax.with_sharding_constraint(y, jax.sharding.SingleDeviceSharding(jax.devices()[0]))

    exported = jax.export.export(jax.jit(f), platforms=["cuda", "cpu"])(x)
    same(tw.compile(exported, threads=1)(x), np.sin(x))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    g = jax.jit(lambda x: lax.with_sharding_constraint(x * 2, sharding), in_shardings=sharding, donate_argnums=0)
    exported = jax.export.export(g)(x)
    same(tw.compile(exported, threads=1)(x), x * 2)
    with pytest.raises(TilewrightError) as e:
        tw.compile(exported.mlir_module_serialized)
    assert "Shardy" in e.value.hint


def test_what_is_refused_says_so():
    x = array(3, 3)
    for f, why in (
        (jnp.linalg.cholesky, "linear algebra by LAPACK"),
        (lambda x: jnp.fft.fft(x), "is complex"),
        (lambda x: lax.rng_bit_generator(np.zeros(4, np.uint32), (3,))[1] + x.sum().astype(np.uint32), "rng_bit"),
        (lambda x: lax.reduce_precision(x, 5, 2), "bits of exponent"),
        (lambda x: x.astype(jnp.float8_e4m3fn).astype(np.float32), "f8E4M3FN"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            tw.compile(export(f, x))
    with pytest.raises(UsageError, match="its shapes already"):
        tw.compile(export(jnp.sin, x), (x,))
    with pytest.raises(UsageError, match="indices are checked in ONNX models only"):
        tw.compile(export(jnp.sin, x), check_indices=True)


def test_the_page():
    """The first example of docs/jax.md runs."""
    page = Path(__file__).resolve().parents[2] / "docs" / "jax.md"
    (example,) = re.findall(r"^    import jax\n(?:(?:    .*)?\n)*", page.read_text(encoding="utf-8"), re.M)
    exec(textwrap.dedent(example), {})
