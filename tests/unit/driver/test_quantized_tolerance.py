"""What rounding to quanta explains of a quantized model's error, and what it does not."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import tilewright as tw
from tilewright.cli import main

LAYERS = 3


def quantized(path, to="uint8"):
    """A chain of quantized products; its input has numbers in the middle between two quanta."""
    random = np.random.default_rng(0)
    text = "a0 = QuantizeLinear(x, s, z) b0 = DequantizeLinear(a0, s, z) "
    for i in range(LAYERS):
        text += f"w{i} = DequantizeLinear(q{i}, t) c{i} = MatMul(b{i}, w{i}) "
        text += f"a{i + 1} = QuantizeLinear(c{i}, s, z) b{i + 1} = DequantizeLinear(a{i + 1}, s, z) "
    last = f"y = Identity(b{LAYERS})"
    made = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> m (float[4, 32] x) => (float[4, 32] y) {{ {text} {last} }}'
    )
    constants = {"s": np.float32(1 / 32), "t": np.float32(1 / 256), "z": np.array(128, to)}
    constants |= {f"q{i}": random.integers(-127, 128, (32, 32)).astype("i1") for i in range(LAYERS)}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(c), name) for name, c in constants.items())
    onnx.save(made, path)
    return (random.integers(-60, 60, (4, 32)) / 32 + 1 / 64).astype("f4")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with a model, its inputs and its outputs where every middle is rounded the other way."""
    folder = tmp_path_factory.mktemp("quanta")
    x = quantized(folder / "m.onnx")
    np.savez(folder / "x.npz", x=x)
    run = tw.compile(folder / "m.onnx")
    np.savez(folder / "other.npz", y=run(x + np.float32(1e-4))[0])
    np.savez(folder / "wrong.npz", y=run(x[:, ::-1].copy())[0])
    return folder


def test_a_check_knows_quanta(case, monkeypatch, capsys):
    """A run whose numbers fell to the other side passes, if nobody asks for less; another result does not."""
    from tilewright.runtime.executable import Executable

    command = ["run", str(case / "m.onnx"), "-i", str(case / "x.npz"), "--check", "reference"]
    assert main(command) == 0
    assert "explains" not in capsys.readouterr().err
    other, wrong = (np.load(case / f"{n}.npz")["y"] for n in ("other", "wrong"))
    with monkeypatch.context() as m:
        m.setattr(Executable, "run", lambda self, given: [other])
        assert main(command) == 0
        assert "rounding to quanta explains" in capsys.readouterr().err
        assert main([*command, "--rtol", "1e-3"]) == 8
        m.setattr(Executable, "run", lambda self, given: [wrong])
        capsys.readouterr()
        assert main(command) == 8
        assert "of which rounding to quanta explains" in capsys.readouterr().err
