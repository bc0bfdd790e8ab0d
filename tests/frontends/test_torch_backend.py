"""``torch.compile(backend="tilewright")``: inference and training against eager PyTorch."""

import copy
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from torch import nn  # noqa: E402

from tilewright.compat import torch_backend  # noqa: E402
from tilewright.compat.torch_backend import Settings, backend  # noqa: E402
from tilewright.compat.torch_calls import FrozenCall  # noqa: E402
from tilewright.errors import UsageError  # noqa: E402

F = nn.functional
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(f, dynamic=None, **options):
    return torch.compile(f, backend=backend, dynamic=dynamic, options={"threads": 1, **options})


def check(f, *inputs, **options):
    """The compiled function gives what f does, with the same strides, and writes to the same inputs."""
    given = copy.deepcopy(inputs)
    want, got = f(*inputs), compiled(f, **options)(*given)
    assert len(want) == len(got)
    for w, g in zip((*want, *inputs), (*got, *given), strict=True):
        if isinstance(w, torch.Tensor):
            assert w.stride() == g.stride()
            torch.testing.assert_close(g, w, **CLOSE, equal_nan=True)
        else:
            assert w == g


# ---- inference -------------------------------------------------------------------------------------------------------


def test_results_lie_in_memory_as_pytorch_has_them():
    x = torch.randn(4, 6)
    check(lambda x: (x.t(), x + 1, (x + 1).t(), x[1:], (x * 2).expand(3, 4, 6), 7, None), x)
    check(lambda x: (x * 2, x.permute(0, 2, 3, 1) + 1), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    check(lambda x: (x * 2,), torch.randn(8, 12)[::2, ::2])
    check(lambda x: (x * 2, x.sum()), torch.randn(0, 3))


def test_views_share_memory():
    def f(x):
        y = x + 1
        return y, y.view(-1), x[0]

    x = torch.randn(2, 3)
    y, flat, first = compiled(f)(x)
    y[0, 0] = 5
    assert flat[0] == 5 and first.data_ptr() == x.data_ptr()


def test_inputs_that_are_written_to():
    check(lambda x: (x.add_(1), x * 2), torch.randn(2, 3))


def test_graph_breaks_and_types():
    def f(x, i):
        y = x.double() * 2 if x.sum() > 100 else x.half() + 1
        return y.float(), i // 2, i > 1

    check(f, torch.randn(5), torch.arange(5))


@pytest.mark.filterwarnings("ignore:aten.igamma")
def test_sizes_may_change():
    def f(x):
        return F.softmax(x @ x.t(), -1).reshape(-1) * x.shape[0]

    run = compiled(f)
    for n in (3, 5, 4, 3, 1):
        x = torch.randn(n, 6)
        torch.testing.assert_close(run(x), f(x), **CLOSE)
    check(lambda x: (torch.igamma((x @ x.t()).relu() + 1, x @ x.t() + 50) * x.shape[0] + x.sum(),), torch.randn(3, 6))


def test_random_numbers_follow_the_seed():
    def f(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(20, 20)
    run = compiled(f)
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), first) and not torch.equal(first, second)
    torch._dynamo.reset()
    run = compiled(f, random="torch")
    torch.manual_seed(3)
    got = run(x)
    torch.manual_seed(3)
    torch.testing.assert_close(got, f(x))


def test_frozen_parameters_that_change():
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5)).eval(), torch.randn(4, 6)
    run = compiled(module)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), module(x), **CLOSE)
            module[0].weight.add_(1)
        module[2].running_mean.fill_(2.0)
        torch.testing.assert_close(run(x), module(x), **CLOSE)
        module[0].weight = nn.Parameter(torch.randn(5, 6))
        torch.testing.assert_close(run(x), module(x), **CLOSE)


@pytest.mark.parametrize("write", [
    lambda p: p.data.add_(1), lambda p: p.detach().numpy().__iadd__(1), lambda p: setattr(p, "data", torch.ones(5, 6)),
    lambda p: p.data[0].fill_(3.0),
])  # fmt: skip
def test_frozen_parameters_that_change_behind_their_counters(write):
    module, x = nn.Linear(6, 5), torch.randn(4, 6)
    run = compiled(module)
    with torch.no_grad():
        before = run(x)
        write(module.weight)
        after = run(x)
    torch.testing.assert_close(after, module(x).detach(), **CLOSE)
    assert not torch.allclose(before, after)


def test_frozen_parameters_cost_a_call_no_loop_of_pythons():
    """Models have hundreds of them, and each is compared in each call."""

    def events(count):
        tensors, seen = [torch.ones(3) for _ in range(count)], []
        call = FrozenCall(lambda args: args, dict(enumerate(tensors)), lambda: pytest.fail("nothing has changed"))
        sys.setprofile(lambda frame, event, what: seen.append(event))
        try:
            call(tensors)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert events(3) == events(100) > 0


def test_what_is_frozen(monkeypatch):
    """In inference, unless the option says otherwise, there is no room, or a parameter is written to."""
    frozen = []
    constants = torch_backend._constants
    monkeypatch.setattr(torch_backend, "_constants", lambda *a: frozen.append(constants(*a)) or frozen[-1])
    module, x = nn.Linear(6, 5), torch.randn(4, 6)

    def kept(f, grad=False, **options):
        frozen.clear()
        torch._dynamo.reset()
        with torch.set_grad_enabled(grad), torch.inference_mode(not grad):
            torch.testing.assert_close(compiled(f, **options)(x), f(x), **CLOSE)
        return [len(f) for f in frozen]

    assert kept(module) == [2] and kept(module, freeze=True) == [2] and kept(module, grad=True) == []
    assert kept(module, freeze=False) == []
    assert kept(lambda x: (module.weight.mul_(1.0), module(x))[1]) == [0]
    monkeypatch.setattr(torch_backend, "_room", lambda: 10)
    made = []
    monkeypatch.setattr(torch_backend, "FrozenCall", lambda *a: made.append(a))
    assert kept(module) == [2] and not made


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_whole_in_inference(kind, monkeypatch):
    monkeypatch.setattr(torch_backend, "_reported", set())
    module = kind(5, 6, num_layers=2, bidirectional=True, batch_first=kind is nn.GRU)
    x, made, compile_graph = torch.randn(30, 3, 5), [], torch_backend.compile_graph
    monkeypatch.setattr(torch_backend, "compile_graph", lambda g, o: made.append(g.text()) or compile_graph(g, o))
    run = compiled(lambda x: module(x.sin())[0] * 2, fallback=False)
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x.sin())[0] * 2, **CLOSE)
        torch.testing.assert_close(run(x + 1), module((x + 1).sin())[0] * 2, **CLOSE)
    assert len(made) == 1 and made[0].count(f'"tw.{kind.__name__.lower()}"') == 4
    assert not torch._dynamo.config.allow_rnn
    given = x.clone().requires_grad_()
    run(given).sum().backward()  # with gradients they are PyTorch's
    assert given.grad is not None


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_of_an_optimizer(foreach, monkeypatch):
    monkeypatch.setattr(torch_backend, "_reported", set())
    modules = [nn.Linear(5, 3)]
    modules.append(copy.deepcopy(modules[0]))
    steppers = [torch.optim.AdamW(m.parameters(), 0.01, amsgrad=True, foreach=foreach) for m in modules]
    steps = [compiled(steppers[0].step), steppers[1].step]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*tilewright")
        for _ in range(3):
            x = torch.randn(4, 5)
            for module, stepper, step in zip(modules, steppers, steps, strict=True):
                stepper.zero_grad()
                module(x).sin().sum().backward()
                step()
    torch.testing.assert_close(modules[0].weight, modules[1].weight, **CLOSE)


def test_operators_on_lists():
    a, b = ([torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5] for _ in range(2))

    def f(*given):
        a, b = list(given[:2]), list(given[2:])
        return [
            *torch._foreach_add(a, b, alpha=2), *torch._foreach_sub(a, 1.5), *torch._foreach_mul(a, [2.0, 3.0]),
            *torch._foreach_addcmul(a, a, b, 0.5), *torch._foreach_addcdiv(a, a, b, [1.0, 2.0]),
            *torch._foreach_lerp(a, b, 0.3), *torch._foreach_maximum(a, 0.7), *torch._foreach_minimum(a, b),
            *torch._foreach_norm(a), *torch._foreach_pow(1.5, a), *torch._foreach_clamp_max(a, b),
            *torch._foreach_sqrt(a),
        ]  # fmt: skip

    check(f, *a, *b, fallback=False)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.around, self.pool, self.head = nn.Conv2d(8, 8, 1, 2), nn.MaxPool2d(3, 2, 1), nn.Linear(8, 5)

    def forward(self, x):
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = F.relu(self.norm2(self.conv2(x)) + self.around(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.qkv = nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 48)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, ids):
        x = self.words(ids)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x + self.down(F.gelu(self.up(x)))).flatten(0, 1)


@pytest.mark.parametrize("make", [ResNet, Transformer])
def test_training_is_eagers(make):
    ours = make()
    theirs = copy.deepcopy(ours)
    x = torch.randn(4, 3, 12, 12) if make is ResNet else torch.randint(0, 11, (2, 6))
    label = torch.randint(0, 5, (4 if make is ResNet else 12,))
    run = compiled(ours, fallback=False)
    steppers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in (ours, theirs)]
    for _ in range(5):
        losses = []
        for f, stepper in zip((run, theirs), steppers, strict=True):
            stepper.zero_grad()
            losses.append(F.cross_entropy(f(x), label))
            losses[-1].backward()
            stepper.step()
        torch.testing.assert_close(*losses, **CLOSE)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_gradients_of_windows():
    """All in one graph: whatever has an import function of its own for its gradient."""
    w1, w2, w3 = torch.randn(5, 3, 3, 3), torch.randn(6, 1, 3, 2), torch.randn(3, 4, 3, 3)

    def f(x, w1, w2, w3):
        made = [
            F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, ceil_mode=True), F.max_pool2d(x, 3, 1, 1, 2),
            F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, (2, 3), divisor_override=5),
            F.adaptive_avg_pool2d(x, (3, 5)), F.conv2d(x, w1, stride=2, padding=1), F.conv2d(x, w1),
            F.conv2d(x, w2, stride=(2, 3), padding=(0, 2), dilation=2, groups=3),
            F.conv_transpose2d(x, w3, stride=2, padding=1, output_padding=1),
        ]  # fmt: skip
        return sum((i + 1) * (m.sin() * m).sum() for i, m in enumerate(made))

    results = []
    for run in (f, compiled(f, fallback=False)):
        torch.manual_seed(1)
        given = [t.clone().requires_grad_() for t in (torch.randn(2, 3, 11, 10), w1, w2, w3)]
        run(*given).backward()
        results.append([t.grad for t in given])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def check_gradients(f, *inputs):
    results = []
    for run in (f, compiled(f, fallback=False)):
        given = [t.clone().requires_grad_() for t in inputs]
        sum((i + 1) * (y.sin() * y).sum() for i, y in enumerate(run(*given))).backward()
        results.append([t.grad for t in given])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_gradients_of_resizing():
    """Whole factors, others, a size that stays, filters wider than an element; one to three dimensions."""

    def f(line, image, volume):
        made = []
        for mode in ("nearest", "nearest-exact"):
            made += [F.interpolate(image, scale_factor=2, mode=mode), F.interpolate(image, size=(8, 4), mode=mode)]
            made += [F.interpolate(line, scale_factor=1.7, mode=mode), F.interpolate(volume, size=(4, 4, 9), mode=mode)]
        for corners in (False, True):
            made += [F.interpolate(line, scale_factor=1.7, mode="linear", align_corners=corners)]
            made += [F.interpolate(volume, size=(4, 2, 5), mode="trilinear", align_corners=corners)]
            for mode in ("bilinear", "bicubic"):
                made += [F.interpolate(image, size=(8, 7), mode=mode, align_corners=corners)]
                made += [F.interpolate(image, size=(3, 9), mode=mode, align_corners=corners, antialias=True)]
        return made

    check_gradients(f, torch.randn(2, 3, 9), torch.randn(2, 3, 5, 7), torch.randn(2, 2, 3, 4, 5))


def test_gradients_of_borders_and_adaptive_maxima():
    def f(line, image, volume):
        return [
            F.pad(line, (2, 1), mode="replicate"), F.pad(image, (2, 1, 0, 3), mode="replicate"),
            F.pad(image, (-2, 1, 0, 3), mode="replicate"), F.pad(volume, (2, 1, 0, 3, 1, 1), mode="replicate"),
            F.adaptive_max_pool1d(line, 4), F.adaptive_max_pool2d(image, (3, 4)),
            F.adaptive_max_pool3d(volume, (2, 3, 4)),
        ]  # fmt: skip

    check_gradients(f, torch.randn(2, 3, 9), torch.randn(2, 3, 5, 7), torch.randn(2, 2, 3, 4, 5))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_gradients_of_grids(mode):
    def f(image, grid, volume, places):
        made = []
        for padding in ("zeros", "border", "reflection"):
            for corners in (False, True):
                made.append(F.grid_sample(image, grid, mode, padding, corners))
                if mode != "bicubic":
                    made.append(F.grid_sample(volume, places, mode, padding, corners))
        return made

    image, volume = torch.randn(2, 3, 5, 7), torch.randn(2, 2, 3, 4, 5)
    check_gradients(f, image, 1.5 * torch.randn(2, 4, 6, 2), volume, 1.5 * torch.randn(2, 2, 4, 3, 3))


def test_a_grid_that_is_no_number():
    """PyTorch's own gradient reads outside of the image there."""
    image, grid = torch.randn(1, 2, 5, 7, requires_grad=True), torch.randn(1, 4, 6, 2)
    grid[0, 0, 0, 0] = torch.nan
    compiled(lambda x, g: F.grid_sample(x, g, "bilinear", "border", False)[..., 1:, :], fallback=False)(
        image, grid.requires_grad_()
    ).sum().backward()
    assert image.grad.sum().isclose(torch.tensor(2.0 * 3 * 6))


def test_the_mask_of_dropout_is_the_same_backward():
    x = torch.ones(16, 16, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5))(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)


# ---- what is not supported, options ----------------------------------------------------------------------------------


def igamma(x):
    return torch.igamma(x.relu() + 1, x.relu() + 2).t() @ x + 1


def test_an_operator_that_pytorch_runs_is_reported_once(monkeypatch):
    monkeypatch.setattr(torch_backend, "_reported", set())
    x = torch.randn(3, 4)
    with pytest.warns(UserWarning, match=r"aten.igamma .* runs in PyTorch \(.*test_torch_backend.py:\d+ in igamma\)"):
        got = compiled(igamma)(x)
    torch.testing.assert_close(got, igamma(x), **CLOSE)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled(lambda x: torch.igamma(x.abs(), x.abs()) + 1)(x)


def test_it_can_be_forbidden():
    with pytest.raises(Exception, match=r"1 operator that cannot be imported:\n  aten.igamma: 1 node"):
        compiled(igamma, fallback=False)(torch.randn(3, 4))


def test_complex_numbers_are_left_to_pytorch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(lambda x: (torch.view_as_real(torch.fft.fft(x + 1)) * 2,), torch.randn(3, 4))


def test_modes_and_options():
    assert Settings.of("max-autotune", None).freeze and Settings.of(None, {}).freeze is None
    assert Settings.of(None, {}).options.threads == torch.get_num_threads()
    assert Settings.of("reduce-overhead", {"threads": 3}).options.threads == 3
    for mode, options, why in (
        ("fast", None, "unknown mode 'fast'"),
        (None, {"treads": 1}, "unknown option 'treads'"),
        (None, {"inputs": {}}, "'inputs' has no meaning"),
        (None, {"freeze": 1}, "'freeze' is True or False"),
        (None, {"random": "numpy"}, "tilewright or torch"),
    ):
        with pytest.raises(UsageError, match=why):
            Settings.of(mode, options)


# ---- another process -------------------------------------------------------------------------------------------------

TRAIN = """
import torch
from tilewright.driver import compiler

def train(backend):
    made, gradients, inner = [], [], compiler.run
    compiler.run = lambda request: made.append(1) or inner(request)
    for dynamic, sizes in ((None, [2]), (True, [5, 7, 40])):
        torch._dynamo.reset()
        module = torch.nn.Linear(4, 3)
        run = torch.compile(module, backend=backend, dynamic=dynamic, options={"threads": 1, "fallback": False})
        for n in sizes:
            run(torch.ones(n, 4)).sum().backward()
        gradients.append(module.weight.grad.tolist())
    compiler.run = inner
    return len(made), gradients
"""


def test_another_process_finds_the_programs(tmp_path, monkeypatch):
    """Those of known sizes and those of any; also the entry point: as an installed package has it."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    entry = re.search(r"\[project.entry-points.torch_dynamo_backends\]\n(tilewright = .*)\n", text).group(1)
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + entry.replace('"', "") + "\n")
    paths = [str(tmp_path), str(Path(torch_backend.__file__).parents[2])]
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    here: dict = {}
    exec(TRAIN, here)
    made, gradients = here["train"](backend)
    assert made == 4 and gradients == [[[2.0] * 4] * 3, [[52.0] * 4] * 3]
    command = [sys.executable, "-c", TRAIN + "print(train('tilewright'))"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str((0, gradients))
