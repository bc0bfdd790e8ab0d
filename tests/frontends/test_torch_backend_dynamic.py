"""``torch.compile(backend="tilewright", dynamic=True)``: one program for all sizes, against eager PyTorch."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from tilewright.compat import torch_backend, torch_dynamic_shapes  # noqa: E402
from tilewright.compat.torch_backend import backend  # noqa: E402
from tilewright.frontends.torch import fx_sizes  # noqa: E402
from tilewright.frontends.torch.fx_sizes import Range  # noqa: E402

F = nn.functional
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
#: (batch, length): the first is compiled, the others are new
SIZES = [(2, 8), (3, 5), (4, 31), (2, 17), (8, 64), (5, 33), (16, 12), (7, 100), (2, 512), (64, 9), (6, 2)]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    monkeypatch.setattr(torch_backend, "_reported", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what falls back is said
        warnings.filterwarnings("ignore", "Failed to load|.*register_constant")
        yield


@pytest.fixture
def made(monkeypatch):
    """What was compiled: the open dimensions of each program, none for one of known sizes."""
    programs = []
    compile_graph = torch_backend.compile_graph

    def counted(graph, options):
        known = torch_backend.current()
        programs.append(() if known is None else tuple(map(str, known.dims)))
        return compile_graph(graph, options)

    monkeypatch.setattr(torch_backend, "compile_graph", counted)
    return programs


def compiled(f, dynamic=True, **options):
    return torch.compile(f, backend=backend, dynamic=dynamic, options={"threads": 1, **options})


def graphs():
    return counters["stats"]["unique_graphs"]


def same(got, want, where):
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w, where
            continue
        assert (g.shape, g.dtype, g.stride()) == (w.shape, w.dtype, w.stride()), where
        torch.testing.assert_close(g, w, **CLOSE, msg=lambda m: f"{where}: {m}")


# ---- models ----------------------------------------------------------------------------------------------------------


class Text(nn.Module):
    """A layer like those of BERT ("mask"), GPT-2 ("causal") or Llama ("rotary", with fewer heads of keys)."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.words, self.places = kind, nn.Embedding(23, 32), nn.Embedding(512, 32)
        self.norm1, self.norm2 = (nn.RMSNorm(32) if kind == "rotary" else nn.LayerNorm(32) for _ in range(2))
        self.q, self.k, self.v = nn.Linear(32, 32), *(nn.Linear(32, 16 if kind == "rotary" else 32) for _ in range(2))
        self.out, self.up, self.gate, self.down = (
            nn.Linear(32, 32),
            nn.Linear(32, 48),
            nn.Linear(32, 48),
            nn.Linear(48, 32),
        )

    def forward(self, ids, mask=None):
        batch, length = ids.shape
        x = self.words(ids)
        if self.kind != "rotary":
            x = x + self.places(torch.arange(length))
        y = self.norm1(x)
        q, k, v = (f(y).view(batch, length, -1, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.kind == "rotary":
            angle = torch.arange(length)[:, None] / 100 ** (torch.arange(4) / 4)
            q, k = (self.turned(t, angle.cos(), angle.sin()) for t in (q, k))
        seen = None if mask is None else (mask[:, None, None, :] > 0).expand(batch, 1, length, length)
        y = F.scaled_dot_product_attention(q, k, v, seen, is_causal=mask is None, enable_gqa=self.kind == "rotary")
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 32))
        y = self.norm2(x)
        y = F.silu(self.gate(y)) * self.up(y) if self.kind == "rotary" else F.gelu(self.up(y))
        x = x + self.down(y)
        return x @ self.words.weight.t(), x[:, -1]

    def turned(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize("kind", ["mask", "causal", "rotary"])
def test_text_models_of_any_batch_and_length(kind, made):
    module = Text(kind).eval()
    run = compiled(module)
    with torch.no_grad():
        for batch, length in SIZES:
            given = [torch.randint(0, 23, (batch, length))]
            if kind == "mask":
                given.append(torch.ones(batch, length, dtype=torch.int64))
                given[1][:, length - length // 3 :] = 0
            same(run(*given), module(*given), (batch, length))
        assert made == [("d0:2..1024", "d1:2..1024")] and graphs() == 1
        if kind == "causal":  # TorchDynamo's own case: a batch of 1 is another graph
            same(run(given[0][:1]), module(given[0][:1]), "one")
            assert graphs() == 2 and made[1:] == [("d0:2..1024",)]


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(3, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3, 2, 1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(8, 5)

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.conv1(x))))
        return (self.head(F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 1).flatten(1)),)


def test_images_of_any_height_and_width(made):
    module = Images().eval()
    run = compiled(module)
    with torch.no_grad():
        for batch, height, width in [
            (2, 8, 12), (3, 9, 9), (5, 32, 31), (2, 64, 40), (8, 17, 33), (4, 100, 100), (2, 7, 50), (15, 28, 28),
            (3, 60, 224), (2, 6, 7), (7, 13, 90),
        ]:  # fmt: skip
            x = torch.randn(batch, 3, height, width)
            same(run(x), module(x), x.shape)
    assert len(made) == graphs() == 1 and len(made[0]) == 3


# ---- training --------------------------------------------------------------------------------------------------------


def steps(module, run, batches):
    """Trains a module as it is and compiled; both end with the same weights."""
    theirs = copy.deepcopy(module)
    run = run(module)
    steppers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (module, theirs)]
    for x, label in batches:
        losses = []
        for f, stepper in zip((run, theirs), steppers, strict=True):
            stepper.zero_grad()
            losses.append(F.cross_entropy(f(x)[0].flatten(0, -2), label))
            losses[-1].backward()
            stepper.step()
        torch.testing.assert_close(*losses, **CLOSE)
    for (name, a), b in zip(module.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.qkv, self.out = nn.Embedding(23, 16), nn.Linear(16, 48), nn.Linear(16, 23)

    def forward(self, ids):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.words(ids)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (self.out(y.transpose(1, 2).flatten(2)),)


def test_training_with_any_batch_and_length(made):
    batches = [(torch.randint(0, 23, (b, n)), torch.randint(0, 23, (b * n,))) for b, n in SIZES[:8]]
    steps(Attention(), lambda m: compiled(m, fallback=False), batches)
    assert len(made) == 2 and graphs() == 1  # forward and backward


def test_training_images_with_any_batch(made):
    """TorchDynamo finds out that the batch changes; PyTorch itself has another convolution from 16 images on."""
    batches = [(torch.randn(b, 3, 8, 8), torch.randint(0, 5, (b,))) for b in (3, 4, 6, 2, 9, 15, 5, 7, 8, 11, 13, 14)]
    steps(Images(), lambda m: compiled(m, None, fallback=False), batches)
    assert made == [(), (), ("d0:2..15",), ("d0:2..15",)] and graphs() == 2


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_results_and_sizes(made):
    """Views, strides, sizes and floats as results; an argument in steps; positions; a number of the caller."""
    weight = nn.Parameter(torch.randn(6, 8))

    def f(x, k):
        y = F.softmax(x @ weight, -1)
        n = x.shape[0]
        return y.reshape(-1, 4) * k, y.t(), (x + 1)[1:], x[1:], n * 2, n / 4, torch.arange(n) + k, x.t().mean(1)

    run = compiled(f)
    with torch.no_grad():
        for n, k in ((3, 7), (5, 2), (70, 100), (4, 3), (1000, 9)):
            same(run(torch.ones(n, 6), k), f(torch.ones(n, 6), k), n)
            wide = torch.randn(n, 13)[:, 1::2]
            same(run(wide, k), f(wide, k), n)
    assert len(made) == graphs() == 2  # of contiguous arguments and of others


def test_wider_ranges(made, monkeypatch):
    monkeypatch.setattr(fx_sizes, "AT_LEAST", 8)
    run = compiled(lambda x: (x.cumsum(0) + 1,))
    for n in (2, 32, 3, 33, 500, 528, 2, 9000):
        x = torch.rand(n, 3)
        same(run(x), (x.cumsum(0) + 1,), n)
    assert [d[1] for d in made] == ["d1:2..32", "d1:2..528", "d1:2..144000"] and graphs() == 1


def test_sizes_that_were_equal(made):
    """TorchDynamo takes sizes that are equal for one, and traces anew when they are not."""

    def f(x, y):
        return x * 2, x.sum(1), y @ y.t()

    run = compiled(f)
    for a, b, c in ((4, 6, 4), (5, 9, 5), (8, 8, 8), (3, 7, 5), (4, 9, 6), (5, 12, 5), (11, 30, 21)):
        given = torch.randn(a, b), torch.randn(c, 3)
        same(run(*given), f(*given), (a, b, c))
    assert len(made) == graphs() <= 4


@pytest.mark.parametrize("across", [False, True])
def test_a_cache_that_grows(across, made):
    """Keys and values of which no guard says that they are as long, in the same place of tensors or in another one."""

    def f(q, k, v, new):
        k, v = torch.cat([k, new], 2), torch.cat([v.transpose(1, 2) if across else v, new], 2)
        return F.scaled_dot_product_attention(q, k, v), k.sum(), v.sum()

    run, q, new = compiled(f, None, fallback=False), torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8)
    new = new.repeat_interleave(2, 1)
    for n in (3, 4, 5, 90, 6, 3):
        k, v = torch.randn(2, 4, n, 8), torch.randn(2, 4, n, 8)
        given = q, k, v.transpose(1, 2).contiguous() if across else v, new
        same(run(*given), f(*given), n)
    assert [len(d) for d in made] == [0, 1] and graphs() == 2


def test_heads_of_any_size(made):
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sum(2), q.sum()

    run = compiled(f, fallback=False)
    with torch.no_grad():
        for b, h, n, d in ((2, 3, 5, 4), (2, 4, 6, 5), (3, 7, 2, 8)):
            given = [torch.randn(b, h, n, d) for _ in range(3)]
            same(run(*given), f(*given), (b, h, n, d))
    assert len(made) == graphs() == 1


def test_sizes_that_are_equal_by_chance(made):
    """Symbols that PyTorch tells apart are one while they are equal in every call."""

    def f(x, y):
        return x * 2, y.cumsum(0)

    run = compiled(f, None)
    for a, b in ((5, 5), (6, 6), (8, 8), (6, 7), (9, 9), (4, 30)):
        given = torch.randn(a, 3), torch.randn(b, 3)
        for t in given:
            torch._dynamo.mark_dynamic(t, 0)
        same(run(*given), f(*given), (a, b))
    assert [len(d) for d in made] == [1, 2] and graphs() == 1


def test_conditions_of_sizes(made):
    """PyTorch says that 4 divides the length, and that something is left behind the first two."""

    def f(x):
        return x.view(x.shape[0], -1, 4).sum(1) + x[2:].sum(), x.flatten().unflatten(0, (-1, 4))

    run = compiled(f)
    for n, m in ((5, 8), (7, 12), (4, 100), (9, 16)):
        x = torch.randn(n, m)
        same(run(x), f(x), (n, m))
    assert graphs() == 1 and len(made) == 1


def test_sizes_that_conditions_relate(made):
    """Slices whose length is the size of another tensor, what is left of them, every second one, and one more."""

    def f(x, y, z, mask):
        first, rest = x.split([y.shape[1], x.shape[1] - y.shape[1]], 1)
        joined = torch.cat([x, y[:, :1]], 1) + mask
        return x[:, -y.shape[1] :] * y + first, rest.sum(1), x[:, ::2] + z, joined, mask[:, : y.shape[1]] + y

    run = compiled(f)
    for n, m in ((11, 4), (12, 4), (40, 7), (8, 6)):
        given = [torch.randn(3, size) for size in (n, m, (n + 1) // 2, n + 1)]
        same(run(*given), f(*given), (n, m))
    assert graphs() == 1 and len(made) == 1


def test_what_is_known_of_a_symbol():
    assert str(Range(2, None, 1).dim("n", 9)) == "n:2..1024"
    assert str(Range(2, None, 1).dim("n", 100, 9000)) == "n:2..9000"
    assert str(Range(4, None, 4).dim("n", 1000)) == "n:4..16000:4"
    assert str(Range(2, 15, 1).dim("n", 3)) == "n:2..15"
    for r, size in ((Range(2, None, 1), -3), (Range(4, None, 4), 6), (Range(2, 15, 1), 16)):
        assert r.dim("n", size) is None


# ---- what has no program for all sizes -------------------------------------------------------------------------------


def windows(x):
    return (F.adaptive_avg_pool2d(x, (3, 5)),)


def test_programs_for_the_sizes_of_calls_are_reported_once(made):
    """Of windows there are tables, so height and width are known; the batch is open when it has changed."""
    run = compiled(windows)
    x = torch.randn(9, 2, 11, 13)
    with pytest.warns(UserWarning, match=r"no program for all sizes .*_adaptive_avg_pool2d \(.*\.py:\d+ in windows\)"):
        same(run(x[:3]), windows(x[:3]), 3)
    for n in (3, 4, 9, 2, 7):
        same(run(x[:n]), windows(x[:n]), n)
    assert made == [(), ("d3:2..1024",)]
    small = torch.randn(3, 2, 7, 8)
    same(run(small), windows(small), "small")
    assert len(made) == 3
    torch._dynamo.reset()
    same(compiled(lambda x: (windows(x)[0] + 1,))(x), (windows(x)[0] + 1,), "again")  # no second warning


def test_numbers_that_are_no_sizes(made):
    run = compiled(lambda x, k: (x * k,))
    for k in (5, 7, 90):
        same(run(torch.ones(3), k), (torch.full((3,), float(k)),), k)
    with pytest.warns(UserWarning, match="because of a number: -4 is none of the sizes from 0 on"):
        same(run(torch.ones(3), -4), (torch.full((3,), -4.0),), -4)
    same(run(torch.ones(6), 8), (torch.full((6,), 8.0),), 8)
    assert len(made) == 2


def test_they_can_be_forbidden():
    with pytest.raises(
        Exception, match=r"cannot be compiled for all sizes at once: aten._adaptive_avg_pool2d \(.*: of"
    ):
        compiled(windows, fallback=False)(torch.randn(3, 2, 11, 13))


def test_a_fault_of_ours_is_no_reason_to_fail(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by mistake")

    monkeypatch.setattr(torch_dynamic_shapes, "ranges_of", broken)
    with pytest.warns(UserWarning, match="because of a graph: ZeroDivisionError: by mistake"):
        same(compiled(lambda x: (x + 1,))(torch.ones(3)), (torch.full((3,), 2.0),), "broken")


def test_parts_that_pytorch_runs_have_any_size(made):
    def f(x):
        y = x @ x.t()
        return torch.igamma(y.relu() + 1, y + 50) * x.shape[0] + x.sum(), x.flatten() * 2

    run = compiled(f)
    with pytest.warns(UserWarning, match="aten.igamma"):
        run(torch.rand(3, 6))
    for n, m in ((4, 5), (9, 2), (30, 7)):
        x = torch.rand(n, m)
        same(run(x), f(x), (n, m))
    assert graphs() == 1 and len(made) == 2 and () not in made  # what comes before, and after
