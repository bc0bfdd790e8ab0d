"""Programs of PyTorch in parts: operators on the host between native ones, sizes that depend on data, complex
tensors."""

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")
pytest.importorskip("scipy", reason="SciPy is not installed: pip install tilewright[torch]")

import tilewright as tw  # noqa: E402
from tilewright.errors import InputError, UnsupportedError  # noqa: E402


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("matrix", torch.eye(4) * 2)

    def forward(self, *xs):
        return self.function(self, *xs)


def both(function, *xs):
    module = Function(function)
    run = tw.compile(module, xs, threads=1)
    torch.testing.assert_close(run(*xs), module(*xs), check_stride=False, rtol=1e-4, atol=1e-5)
    return module, run


def test_native_parts_around_the_host():
    torch.manual_seed(0)
    a, b = torch.randn(3, 4, 4), torch.randn(3, 4, 2)

    def solve(self, a, b):
        made = torch.linalg.solve(a @ a.mT + self.matrix, b.exp())
        return made * 2, torch.linalg.inv(self.matrix), torch.linalg.svdvals(made).sum()

    both(solve, a, b)


def test_a_singular_matrix_is_said():
    _, run = both(lambda self, a: torch.linalg.inv(a), torch.eye(3))
    with pytest.raises(InputError, match="singular"):
        run(torch.zeros(3, 3))


def test_sizes_that_depend_on_data():
    module, run = both(lambda self, x: (x * 2)[torch.nonzero(x > 0)[:, 0]].exp(), torch.tensor([1.0, -1.0, 2.0]))
    for x in ([1.0, 2.0, 3.0], [-1.0, 0.5, -2.0], [1.5, -1.0, 2.5]):
        given = torch.tensor(x)
        torch.testing.assert_close(run(given), module(given))


def test_loops_that_depend_on_data(tmp_path):
    """Loops, loops in loops and in branches, with what they take from outside; they are saved, too."""

    def twice_each(i, x, n):
        inner = torch.while_loop(lambda v: v.sum() < n, lambda v: (v.abs() * 2 + 1,), (x * 1,))[0]
        return i + 1, inner - x

    def f(self, x, n):
        matrix = self.matrix + 0
        i, y = torch.while_loop(lambda i, x: i < 3, lambda i, x: twice_each(i, x @ matrix, n), (n.long() * 0, x * 1))
        z = torch.cond(
            x.sum() > 0, lambda x, n: torch.while_loop(lambda v: v.sum() < n, lambda v: (v * 3,), (x * 1,))[0],
            lambda x, n: x - n, (x, n)
        )  # fmt: skip
        return i, y, z

    xs = torch.ones(2, 4), torch.tensor(40.0)
    module, run = both(f, *xs)
    run.executable.save(tmp_path / "loop.tw")
    loaded = tw.load(tmp_path / "loop.tw")
    for given in ((-xs[0], xs[1]), (xs[0] * 9, xs[1]), xs):
        expected = module(*given)
        torch.testing.assert_close(run(*given), expected)
        for a, b in zip(loaded(*[x.numpy() for x in given]), expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(a), b)
    inverted = Function(lambda self, x, n: f(self, torch.linalg.inv(x @ x.mT + self.matrix[:2, :2]) @ x, n))
    with pytest.raises(UnsupportedError, match="loops that depend on data, and operators that run on the host"):
        tw.compile(inverted, xs)
    rows = {"xs": ({0: torch.export.Dim("rows", min=1, max=8)}, {})}
    with pytest.raises(UnsupportedError, match="all sizes of rows"):
        tw.compile(Function(f), xs, dynamic_shapes=rows)


def test_complex_tensors_go_in_and_out():
    torch.manual_seed(0)
    x = torch.randn(3, 8, dtype=torch.complex64)
    both(lambda self, x: (torch.fft.fft(x) * x.conj() + 1j, x.abs(), x.angle(), torch.view_as_real(x)), x)


def test_what_is_not_there(monkeypatch, tmp_path):
    x = torch.eye(3)
    _, run = both(lambda self, x: torch.linalg.eigvalsh(x), x)
    with pytest.raises(UnsupportedError, match="not saved"):
        run.executable.save(tmp_path / "m.tw")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "scipy" else found(name, *a))
    with pytest.raises(UnsupportedError, match="SciPy"):
        tw.compile(Function(lambda self, x: torch.linalg.eigvalsh(x)), (x,))
