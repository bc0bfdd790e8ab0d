"""Operators of PyTorch, a family at a time: one module that gives many results, compiled and compared with PyTorch."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

import tilewright as tw  # noqa: E402

F = torch.nn.functional


class Results(torch.nn.Module):
    """All results of functions of the same tensors."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *tensors):
        return [f(*tensors) for f in self.functions]


def check(functions, *tensors, **close):
    module = Results(functions)
    run = tw.compile(module, tensors, threads=1)
    got, want = run(*tensors), module(*tensors)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(g, w, check_stride=False, equal_nan=True, **close, msg=lambda m, i=i: f"{i}: {m}")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_functions_of_numbers():
    names = (
        "sin cos tan asin atan sinh cosh tanh asinh exp expm1 erf sigmoid square neg abs sign floor ceil round trunc "
        "frac isnan isinf signbit positive exp2 log1p"
    )
    x = torch.cat([torch.linspace(-0.99, 0.99, 29), torch.tensor([0.0, -0.0, 1e-6, -1e-6, 0.5])])
    check([getattr(torch, name) for name in names.split()], x)
    positive = torch.linspace(0.01, 9, 31)
    check([torch.log, torch.log2, torch.log10, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.log1p], positive)


def test_special_numbers():
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 3e38])
    check([torch.isnan, torch.isinf, torch.isposinf, torch.isneginf, torch.signbit, torch.log1p, torch.expm1], x)
    y = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    check([torch.atan2, torch.fmax, torch.fmin, torch.maximum, torch.copysign], y[:, None], y[None])


def test_arithmetic_and_promotion():
    x, y = torch.randn(3, 4), torch.randn(4).abs() + 0.5
    i, b = torch.randint(-9, 9, (3, 4)), torch.rand(3, 4) > 0.5
    check(
        [
            lambda x, y, i, b: x + y,
            lambda x, y, i, b: i + y,
            lambda x, y, i, b: i * 2 + b,
            lambda x, y, i, b: i / 3,
            lambda x, y, i, b: x // y,
            lambda x, y, i, b: i // 4,
            lambda x, y, i, b: i % 4,
            lambda x, y, i, b: x % y,
            lambda x, y, i, b: torch.fmod(x, y),
            lambda x, y, i, b: torch.fmod(i, -4),
            lambda x, y, i, b: 1 - i,
            lambda x, y, i, b: torch.add(i, i, alpha=3),
            lambda x, y, i, b: torch.rsub(x, y, alpha=2),
            lambda x, y, i, b: i**2,
            lambda x, y, i, b: y**2.5,
            lambda x, y, i, b: 2.0**x,
            lambda x, y, i, b: b & (i > 0),
            lambda x, y, i, b: i & 6,
            lambda x, y, i, b: i << 2,
            lambda x, y, i, b: i >> 1,
            lambda x, y, i, b: ~i,
            lambda x, y, i, b: ~b,
            lambda x, y, i, b: x > i,
            lambda x, y, i, b: i == 2.5,
            lambda x, y, i, b: b > False,
            lambda x, y, i, b: x != 0,
            lambda x, y, i, b: torch.where(b, x, i),
            lambda x, y, i, b: x.clamp(-0.5, 0.5),
            lambda x, y, i, b: i.clamp(min=2),
            lambda x, y, i, b: torch.div(i, 4, rounding_mode="trunc"),
            lambda x, y, i, b: torch.div(x, y, rounding_mode="floor"),
            lambda x, y, i, b: torch.addcmul(x, x, y, value=0.5),
            lambda x, y, i, b: torch.lerp(x, y, 0.3),
            lambda x, y, i, b: x.to(torch.int32),
            lambda x, y, i, b: i.to(torch.uint8),
            lambda x, y, i, b: x.bool(),
            lambda x, y, i, b: x.half() + 1,
            lambda x, y, i, b: x.bfloat16() * 3,
            lambda x, y, i, b: x.double() / 3,
        ],
        x,
        y,
        i,
        b,
    )


def test_activations():
    x = torch.linspace(-30, 30, 121)
    check(
        [
            F.relu,
            F.relu6,
            F.gelu,
            lambda x: F.gelu(x, approximate="tanh"),
            F.silu,
            F.mish,
            F.elu,
            F.celu,
            F.selu,
            lambda x: F.elu(x, 0.7),
            F.hardswish,
            F.hardsigmoid,
            F.hardtanh,
            F.softplus,
            lambda x: F.softplus(x, 2, 5),
            F.softshrink,
            F.hardshrink,
            F.leaky_relu,
            F.logsigmoid,
            F.tanhshrink,
            F.softsign,
            lambda x: F.threshold(x, 0.1, 20),
            lambda x: F.glu(x[:120].reshape(4, 30)),
        ],
        x,
        rtol=1e-5,
        atol=1e-5,
    )


def test_products():
    a, b, v = torch.randn(4, 5), torch.randn(5, 6), torch.randn(5)
    t = torch.randn(2, 3, 4, 5)
    check(
        [
            lambda a, b, v, t: a @ b,
            lambda a, b, v, t: a @ v,
            lambda a, b, v, t: v @ v,
            lambda a, b, v, t: t @ b,
            lambda a, b, v, t: F.linear(t, b.T, torch.ones(6)),
            lambda a, b, v, t: torch.einsum("...ij,jk->...k", t, b),
            lambda a, b, v, t: torch.addmm(torch.ones(6), a, b, alpha=2, beta=3),
            lambda a, b, v, t: torch.outer(v, v),
            lambda a, b, v, t: torch.bmm(t[0], t[1].transpose(1, 2)),
            lambda a, b, v, t: torch.cdist(a, b.T),
            lambda a, b, v, t: torch.einsum("ij,jk", a, b),
        ],
        a,
        b,
        v,
        t,
        rtol=1e-5,
        atol=1e-5,
    )


def test_convolutions():
    x, w = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3)
    g, up = torch.randn(8, 1, 3, 3), torch.randn(4, 5, 3, 3)
    check(
        [
            lambda x, w, g, up: F.conv2d(x, w, torch.ones(6), stride=2, padding=1),
            lambda x, w, g, up: F.conv2d(x, w, padding="same", dilation=2),
            lambda x, w, g, up: F.conv2d(x, g, groups=4),
            lambda x, w, g, up: F.conv2d(x[0], w),
            lambda x, w, g, up: F.conv_transpose2d(x, up, stride=2, padding=1, output_padding=1),
            lambda x, w, g, up: F.unfold(x, 3, padding=1, stride=2),
            lambda x, w, g, up: F.fold(F.unfold(x, 2, stride=1), (9, 8), 2),
        ],
        x,
        w,
        g,
        up,
        rtol=1e-4,
        atol=1e-4,
    )


def test_resizing():
    x = torch.randn(1, 2, 5, 7)
    made = [
        lambda x, mode=mode, how=how, corners=corners: F.interpolate(x, mode=mode, **how, **corners)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        for how in ({"scale_factor": 2.0}, {"size": (8, 3)}, {"scale_factor": (0.7, 1.3)})
        for corners in ([{}] if "nearest" in mode else [{"align_corners": True}, {"align_corners": False}])
    ]
    made += [
        lambda x, mode=mode, c=c: F.interpolate(x, size=(3, 4), mode=mode, align_corners=c, antialias=True)
        for mode in ("bilinear", "bicubic")
        for c in (False, True)
    ]
    made.append(lambda x: F.interpolate(x[0], size=9, mode="linear"))
    grid = torch.rand(1, 3, 4, 2) * 2.4 - 1.2
    made += [
        lambda x, mode=mode, pad=pad: F.grid_sample(x, grid, mode=mode, padding_mode=pad, align_corners=False)
        for mode in ("bilinear", "nearest")
        for pad in ("zeros", "border", "reflection")
    ]
    check(made, x, rtol=1e-4, atol=1e-4)


def test_pools():
    x = torch.randn(2, 3, 9, 10)
    check(
        [
            lambda x: F.max_pool2d(x, 3, 2, 1),
            lambda x: F.max_pool2d(x, 2, ceil_mode=True),
            lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
            lambda x: F.avg_pool2d(x, 3, 2, 1),
            lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7),
            lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=7),
            lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
            lambda x: F.adaptive_avg_pool2d(x, 1),
            lambda x: F.adaptive_max_pool2d(x, (4, 3)),
            lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True)[1],
            lambda x: F.lp_pool2d(x, 2, 3),
            lambda x: F.avg_pool1d(x[0], 3),
            lambda x: F.max_pool1d(x[0], 3),
        ],
        x,
        rtol=1e-5,
        atol=1e-5,
    )


def test_norms():
    x, c = torch.randn(3, 4, 5, 6), torch.rand(4) + 0.5
    check(
        [
            lambda x, c: F.layer_norm(x, (5, 6)),
            lambda x, c: F.layer_norm(x, (6,), torch.ones(6), torch.ones(6), 1e-3),
            lambda x, c: F.rms_norm(x, (6,)),
            lambda x, c: F.rms_norm(x, (6,), torch.arange(6.0), 1e-4),
            lambda x, c: F.group_norm(x, 2, c, c),
            lambda x, c: F.instance_norm(x),
            lambda x, c: F.batch_norm(x, c, c, c, c),
            lambda x, c: F.batch_norm(x, None, None, training=True),
            lambda x, c: torch.ops.aten._batch_norm_with_update_functional(x, c, c, c, c, 0.1, 1e-5)[0],
            lambda x, c: torch.ops.aten._batch_norm_with_update_functional(x, c, c, c, c, 0.1, 1e-5)[5],
            lambda x, c: F.softmax(x, 1),
            lambda x, c: F.log_softmax(x, -1),
            lambda x, c: F.normalize(x, dim=1),
            lambda x, c: torch.nn.functional.local_response_norm(x, 3),
            lambda x, c: F.cosine_similarity(x, x + c[0]),
        ],
        x,
        c,
        rtol=1e-4,
        atol=1e-5,
    )


def test_reductions():
    x, i = torch.randn(3, 4, 5), torch.randint(-5, 5, (3, 4))
    check(
        [
            lambda x, i: x.sum(),
            lambda x, i: x.sum((0, -1), keepdim=True),
            lambda x, i: i.sum(1),
            lambda x, i: x.mean(1),
            lambda x, i: x.amax((0, 2)),
            lambda x, i: x.max(1)[0],
            lambda x, i: x.max(1)[1],
            lambda x, i: x.min(-1, True)[1],
            lambda x, i: i.prod(),
            lambda x, i: x.argmax(),
            lambda x, i: i.argmin(1),
            lambda x, i: (i > 0).any(1),
            lambda x, i: (i > -5).all(),
            lambda x, i: x.var(),
            lambda x, i: x.std(1, unbiased=False),
            lambda x, i: x.norm(),
            lambda x, i: x.norm(1, -1),
            lambda x, i: torch.linalg.vector_norm(x, 3, (0, 1)),
            lambda x, i: x.logsumexp(1),
            lambda x, i: x.cumsum(1),
            lambda x, i: i.cumprod(0),
            lambda x, i: torch.count_nonzero(i, 0),
            lambda x, i: x.median(),
            lambda x, i: x.median(1)[0],
            lambda x, i: x.cummax(1)[0],
            lambda x, i: x.cummax(1)[1],
            lambda x, i: x.cummin(2)[0],
            lambda x, i: torch.var_mean(x, 1, correction=2)[1],
        ],
        x,
        i,
        rtol=1e-5,
        atol=1e-5,
    )


def test_views_and_moves():
    x, i = torch.randn(2, 3, 4), torch.arange(24).reshape(4, 6)
    check(
        [
            lambda x, i: x.reshape(4, -1),
            lambda x, i: x.permute(2, 0, 1),
            lambda x, i: x.mT,
            lambda x, i: i.T,
            lambda x, i: x[:, 1:, ::2],
            lambda x, i: x[..., -1],
            lambda x, i: x[None, :, 0],
            lambda x, i: i[-3:, 1:5:3],
            lambda x, i: torch.cat([x, x[:1]]),
            lambda x, i: torch.stack([x, x], 1),
            lambda x, i: x.split(2, 1)[1],
            lambda x, i: x.chunk(3, -1)[1],
            lambda x, i: x.unbind(1)[2],
            lambda x, i: x.expand(5, 2, 3, 4),
            lambda x, i: i.flip(0, 1),
            lambda x, i: i.roll(2),
            lambda x, i: i.roll((1, -2), (0, 1)),
            lambda x, i: F.pad(x, (1, 2, -1, 0), value=3.0),
            lambda x, i: F.pad(x, (1, 2), mode="reflect"),
            lambda x, i: F.pad(x, (3, 0), mode="replicate"),
            lambda x, i: i.diagonal(1),
            lambda x, i: i.tril(-1),
            lambda x, i: x.triu(1),
            lambda x, i: x.repeat(2, 1, 3),
            lambda x, i: i.repeat_interleave(2, 1),
            lambda x, i: i.unfold(1, 3, 2),
            lambda x, i: F.pixel_shuffle(i.float().reshape(4, 2, 3), 2),
            lambda x, i: i.squeeze(),
            lambda x, i: i.select_scatter(torch.zeros(6, dtype=torch.int64), 0, 1),
            lambda x, i: torch.diag_embed(x)[0],
            lambda x, i: i.slice_scatter(torch.zeros(4, 2, dtype=torch.int64), 1, 1, 6, 3),
            lambda x, i: i.as_strided((2, 3), (5, 2), 1),
        ],
        x,
        i,
    )


def test_indices():
    x, rows = torch.randn(5, 4, 6), torch.tensor([[0, 3], [-1, 2]])
    mask = torch.rand(5, 4, 6) > 0.5
    columns = torch.tensor([[1, 0], [3, 3]])
    check(
        [
            lambda x, r, c, m: x[r],
            lambda x, r, c, m: x[:, c],
            lambda x, r, c, m: x[r, c],
            lambda x, r, c, m: x[r, :, c],
            lambda x, r, c, m: x[:, c, c],
            lambda x, r, c, m: F.embedding(r.abs(), x[:, 0]),
            lambda x, r, c, m: x.index_select(1, c[0]),
            lambda x, r, c, m: x.gather(1, c[None].expand(2, 2, 2)),
            lambda x, r, c, m: x.scatter(1, c[None], x[:1, :2, :2]),
            lambda x, r, c, m: x.scatter(0, c[None], 7.0),
            lambda x, r, c, m: x.scatter_add(1, c[None], x[:1, :2, :2]),
            lambda x, r, c, m: x.masked_fill(m, -1),
            lambda x, r, c, m: x.scatter_reduce(0, c[None], x[:1, :2, :2], "amax"),
            lambda x, r, c, m: x.sort(1)[0],
            lambda x, r, c, m: x.index_put((r, c), x[0, 0]),
            lambda x, r, c, m: x.index_put((r,), x[:1, :1], accumulate=True),
            lambda x, r, c, m: x.index_add(1, c[1], x[:, :2]),
            lambda x, r, c, m: x.topk(2, 1)[0],
            lambda x, r, c, m: x.topk(2, 1)[1],
            lambda x, r, c, m: x.argsort(2, descending=True),
            lambda x, r, c, m: x.kthvalue(2, 0)[0],
            lambda x, r, c, m: x.take(c),
            lambda x, r, c, m: x.take(r[1, 1]),
            lambda x, r, c, m: torch.bucketize(x, x[0, 0].sort()[0]),
            lambda x, r, c, m: F.one_hot(c, 5),
            lambda x, r, c, m: x.masked_scatter(m, x * 2),
            lambda x, r, c, m: torch.searchsorted(x[0, 0].sort()[0], x, right=True),
        ],
        x,
        rows,
        columns,
        mask,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
        lambda: torch.nn.LSTM(4, 6, bias=False),
        lambda: torch.nn.LSTM(4, 5, 2, bidirectional=True, proj_size=3),
        lambda: torch.nn.GRU(4, 5, 2, bidirectional=True),
        lambda: torch.nn.GRU(4, 6, bias=False, batch_first=True),
        lambda: torch.nn.RNN(4, 5, 2, nonlinearity="relu"),
        lambda: torch.nn.RNN(4, 5, bidirectional=True),
    ],
)
def test_recurrent_layers(make):
    module, x = make().eval(), torch.randn(3, 7, 4)
    run = tw.compile(module, (x,), threads=1)
    tree = torch.utils._pytree
    for g, w in zip(tree.tree_leaves(run(x)), tree.tree_leaves(module(x)), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


def test_recurrent_layers_with_states():
    lstm, gru = torch.nn.LSTM(4, 5).eval(), torch.nn.GRU(4, 5).eval()
    x, h, c = torch.randn(3, 2, 4), torch.randn(1, 2, 5), torch.randn(1, 2, 5)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = lstm, gru

        def forward(self, x, h, c):
            y, (last, cell) = self.lstm(x, (h, c))
            return y, last, cell, *self.gru(x, h)

    for g, w in zip(tw.compile(Both(), (x, h, c), threads=1)(x, h, c), Both()(x, h, c), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


def test_attention():
    q, k, v = (torch.randn(2, 4, n, 8) for n in (5, 7, 7))
    masks = torch.rand(2, 1, 5, 7) > 0.3, torch.randn(5, 7)
    attend = F.scaled_dot_product_attention
    check(
        [
            lambda q, k, v, m, a: attend(q, k, v),
            lambda q, k, v, m, a: attend(q, k, v, m),
            lambda q, k, v, m, a: attend(q, k, v, a, scale=0.3),
            lambda q, k, v, m, a: attend(k, k, v, is_causal=True),
            lambda q, k, v, m, a: attend(q[0], k[0], v[0]),
            lambda q, k, v, m, a: attend(q, k[:, :2], v[:, :2], enable_gqa=True),
        ],
        q,
        k,
        v,
        *masks,
        rtol=1e-5,
        atol=1e-5,
    )


def test_tensors_that_are_made():
    check(
        [
            lambda x: torch.arange(2, 9, 3) + x[0].long(),
            lambda x: torch.linspace(0, 1, 7),
            lambda x: torch.eye(3, 4) * 2,
            lambda x: torch.full((2, 2), 7) + 1,
            lambda x: torch.ones_like(x) + x,
            lambda x: x.new_zeros(3),
            lambda x: torch.arange(0.5, 3),
        ],
        torch.randn(4),
    )


def test_control_flow():
    def branches(x, p):
        return torch.cond(p > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))

    x = torch.randn(3, 4)
    run = tw.compile(Results([branches]), (x, torch.tensor(1.0)), threads=1)
    for p in (1.0, -1.0):
        torch.testing.assert_close(run(x, torch.tensor(p))[0], branches(x, torch.tensor(p)))


def test_random_numbers():
    x = torch.ones(10000)
    run = tw.compile(Results([torch.rand_like, torch.randn_like, lambda x: F.dropout(x, 0.25)]), (x,), threads=1)
    (u, g, d), (again, *_) = run(x), run(x)
    assert not torch.equal(u, again) and u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.02
    assert abs(g.mean()) < 0.05 and abs(g.std() - 1) < 0.05
    assert set(d.tolist()) == {0.0, torch.tensor(1 / 0.75).item()} and abs(d.mean() - 1) < 0.03
