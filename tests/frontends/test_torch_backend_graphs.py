"""``torch.compile(backend="tilewright")``: checkpoints, branches, regions, and parts that PyTorch runs."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from torch import nn  # noqa: E402
from torch._higher_order_ops import cond  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tilewright.compat import torch_backend  # noqa: E402
from tilewright.compat.torch_backend import backend  # noqa: E402

F = nn.functional
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(torch_backend, "_reported", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what falls back is said
        warnings.filterwarnings("ignore", "Failed to load|.*register_constant")
        yield


def compiled(f, dynamic=None, **options):
    return torch.compile(f, backend=backend, dynamic=dynamic, options={"threads": 1, **options})


class Block(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.qkv, self.drop = nn.Linear(16, 48), drop

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.dropout(y, self.drop) if self.drop else y


def gradients(f, module, x):
    """What a function of a module and an input gives, and its gradients."""
    module, x = copy.deepcopy(module), x.clone().requires_grad_()
    y = f(module)(x)
    y.sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("nested", [False, True])
def test_checkpoints_around_attention(nested):
    def twice(module):
        def inner(x):
            return checkpoint(module, x, use_reentrant=False) if nested else module(x)

        return lambda x: checkpoint(inner, x, use_reentrant=False) + x

    x = torch.randn(2, 6, 16)
    module = Block()
    want, got = (gradients(f, module, x) for f in (twice, lambda m: compiled(twice(m), fallback=False)))
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g, w, **CLOSE)


def test_a_checkpoint_forgets_the_same_twice():
    """Dropout that is computed a second time is PyTorch's, with its own states."""
    x = torch.ones(2, 6, 16)

    def f(x):
        return checkpoint(lambda x: F.dropout(x * x, 0.5), x, use_reentrant=False)

    given = x.clone().requires_grad_()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        y = compiled(f)(given)
        y.sum().backward()
    assert {str(w.message).partition(" ")[0].rpartition(".")[2] for w in said if "tilewright" in str(w.message)} == {
        "run_and_save_rng_state", "run_with_rng_state",
    }  # fmt: skip
    torch.testing.assert_close(given.grad, 2 * y.detach())
    assert 0.2 < (y == 0).float().mean() < 0.8


def test_regions_and_branches():
    line = nn.Linear(16, 16)

    @torch.compiler.nested_compile_region
    def region(x):
        return line(x).relu()

    x = torch.randn(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(lambda x: region(region(x)), fallback=False)(x), line(line(x).relu()).relu(), **CLOSE
        )

        def f(x):
            return cond(x.sum() > 0, lambda x: torch.igamma(x.abs() + 1, x.abs() + 2) * 2, lambda x: x.cos(), (x,)) + 1

        run = compiled(f)
        with pytest.warns(UserWarning, match=r"cond with aten.igamma .*runs in PyTorch"):
            torch.testing.assert_close(run(x.abs()), f(x.abs()), **CLOSE)
        torch.testing.assert_close(run(-x.abs()), f(-x.abs()), **CLOSE)


def test_parts_behind_formulas_of_sizes():
    """PyTorch gives a matrix of 2 * n rows and min(2 * n, m) columns to what is compiled behind it."""

    def f(x):
        q, r = torch.linalg.qr(torch.cat([x, x]))
        return q.abs() * 2, r.shape[0], (r @ r.T).sum() * x.shape[1]

    run = compiled(f, True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*linalg_qr")
        for n, m in ((4, 6), (5, 3), (7, 7)):
            x = torch.randn(n, m)
            for got, want in zip(run(x), f(x), strict=True):
                torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-3, atol=1e-4)
