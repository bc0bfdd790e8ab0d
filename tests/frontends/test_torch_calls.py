"""What `tw.compile` makes of a module is called, copied, pickled and printed as the module is."""

import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

import tilewright as tw  # noqa: E402
from tilewright.errors import InputError, UnsupportedError  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, mask=None, *rest, scale=2.0):
        self.calls += 1
        return {"logits": self.layer(x) * scale, "more": (x, [x + 1])}


@pytest.fixture(scope="module")
def compiled():
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    module = Model().eval()
    return tw.compile(module, (x,), threads=1), module, x


def test_arguments_are_bound_as_by_the_module(compiled):
    run, module, x = compiled
    want = module(x)["logits"]
    for got in (run(x), run(x=x), run(x, None), run(x, mask=None, scale=2.0)):
        torch.testing.assert_close(got["logits"], want)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda run, x: run(), "missing a required argument: 'x'"),
        (lambda run, x: run(x, y=1), "unexpected keyword argument 'y'"),
        (lambda run, x: run(x, x), "'mask' was left out of the example inputs"),
        (lambda run, x: run(x, None, x), "'rest' was left out of the example inputs"),
        (lambda run, x: run(x, scale=3.0), r"its default \(2.0\) is built into the program"),
        (lambda run, x: run([x, x]), r"\(\[\*, \*\]\)"),
        (lambda run, x: run(x.half()), "torch.float16, the program takes torch.float32"),
        (lambda run, x: run(x, out=x), r"the result is \{logits: \*, more: \(\*, \[\*\]\)\}"),
    ],
)
def test_arguments_that_do_not_fit(compiled, call, says):
    run, _, x = compiled
    with pytest.raises(InputError, match=says):
        call(run, x)


def test_results_have_the_names_of_keys(compiled):
    run, _, _ = compiled
    assert [o.name for o in run.outputs] == ["next.b_calls", "logits", "more.0", "more.1.0"]
    assert "Model(x: f32[3, 16]) -> (logits: f32[3, 4]" in repr(run)
    assert "kernel" in run.explain()


def test_copies_and_pickles_have_buffers_of_their_own(compiled):
    run, module, x = compiled
    for copied in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        before = module.calls.item()
        torch.testing.assert_close(copied(x=x)["logits"], module(x)["logits"])
        assert module.calls.item() == before + 1


@pytest.mark.parametrize("function", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])
def test_copies_of_executables(function):
    executable = tw.compile(torch.nn.Linear(4, 4), (torch.ones(2, 4),), threads=1).executable
    copied = function(executable)
    x = executable.inputs[0].numpy_dtype.type(1) + torch.zeros(2, 4).numpy()
    assert (copied(x)[0] == executable(x)[0]).all() and copied.threads == executable.threads


def test_out():
    linear = torch.nn.Linear(16, 4).eval()
    x, y = torch.randn(3, 16), torch.empty(3, 4)
    run = tw.compile(linear, (x,), threads=1)
    assert run(x, out=y) is y
    torch.testing.assert_close(y, linear(x))
    with pytest.raises(InputError, match=r"f32\[4, 3\]"):
        run(x, out=torch.empty(4, 3))


@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4)])
def test_training_mode_warns(layer):
    x = torch.randn(2, 4)
    with pytest.warns(UserWarning, match=r"in training mode: 0 .*module.eval\(\)"):
        tw.compile(torch.nn.Sequential(layer), (x,), stop_after="import")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tw.compile(torch.nn.Sequential(layer).eval(), (x,), stop_after="import")


def _module(function):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module()


def _choices(x, mask, count, repeats):
    return (
        x[mask],
        x[:, None][:, :, mask[0]],
        x[:, : count.item()] * 2,
        x[count.item() : -1].sum(0),
        torch.repeat_interleave(x, repeats, 0),
        x[x.sum(1) > 0] + 1,
    )


def test_sizes_that_depend_on_data():
    generator = torch.Generator().manual_seed(2)
    run = None
    for n in (3, 1):
        x = torch.randn(4, 6, generator=generator)
        given = (x, x > 0.3, torch.tensor(n), torch.tensor([n, 0, 2, 1]))
        run = run or tw.compile(_module(_choices), given, threads=1)
        for got, want in zip(run(*given), _choices(*given), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("equation", ["ij,kj->ik", "bij,bjk,k->bi", "iij->ji", "...j,j"])
def test_complex_einsum(equation):
    shapes = {
        "ij,kj->ik": [(3, 4), (2, 4)], "bij,bjk,k->bi": [(2, 3, 4), (2, 4, 5), (5,)], "iij->ji": [(3, 3, 2)],
        "...j,j": [(2, 3, 4), (4,)],
    }[equation]  # fmt: skip
    given = [torch.randn(s, dtype=torch.complex64) for s in shapes]
    if len(given) > 1:
        given[-1] = given[-1].real.contiguous()  # one of them real
        given[-1] = torch.complex(given[-1], torch.zeros_like(given[-1])) if equation == "ij,kj->ik" else given[-1]
    module = _module(lambda *xs: torch.einsum(equation, *(x.to(torch.complex64) for x in xs)))
    torch.testing.assert_close(tw.compile(module, tuple(given), threads=1)(*given), module(*given))


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.GRU(6, 5, batch_first=True)

    def forward(self, x, lengths):
        pack = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return torch.nn.utils.rnn.pad_packed_sequence(self.layer(pack)[0], batch_first=True)[0]


@pytest.mark.parametrize(
    "module, given, says",
    [
        (Packed(), (torch.randn(2, 7, 6), torch.tensor([7, 3])), "packed sequences.*mask its result"),
        (_module(lambda x: x + 1 if x.sum() > 0 else x - 1), (torch.ones(4),), "a value that is computed.*torch.where"),
        (
            _module(lambda x, y, n: torch.nn.functional.ctc_loss(x.log_softmax(-1), y, n, n)),
            (torch.randn(5, 2, 4), torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 2])),
            'CTC loss.*torch.compile.*backend="tilewright"',
        ),
    ],
)
def test_refusals_say_what_to_write_instead_and_dump_no_graph(module, given, says, capfd):
    with pytest.raises(UnsupportedError, match=f"(?s){says}"):
        tw.compile(module, given)
    assert "def forward(" not in capfd.readouterr().err
