"""MLIR from strangers: one clear error or a model, never a crash, and no reads outside of tensors."""

import random

import numpy as np
import pytest
from torch_mlir._mlir_libs import _stablehlo

import tilewright as tw
from tilewright.frontends.mlir.reader import load_mlir
from tilewright.frontends.mlir.text import MAX_NESTING
from tilewright.ir.context import parse, use
from tilewright.support.errors import ModelError, TilewrightError

MODEL = """
#m = affine_map<(d0) -> (d0)>
module {
  func.func @main(%x: tensor<8xf32>, %i: tensor<5xi32>) -> tensor<5xf32> {
    %e = tensor.empty() : tensor<5xf32>
    %0 = linalg.generic {indexing_maps = [#m, #m], iterator_types = ["parallel"]}
      ins(%i : tensor<5xi32>) outs(%e : tensor<5xf32>) {
    ^bb0(%a: i32, %o: f32):
      %b = arith.index_cast %a : i32 to index
      %j = linalg.index 0 : index
      %v = tensor.extract %x[%b] : tensor<8xf32>
      %w = tensor.extract %x[%j] : tensor<8xf32>
      %s = arith.addf %v, %w : f32
      linalg.yield %s : f32
    } -> tensor<5xf32>
    return %0 : tensor<5xf32>
  }
}
"""


def test_computed_indices_are_clamped():
    run = tw.compile(MODEL, threads=1)
    x, i = np.arange(8, dtype=np.float32) + 1, np.int32([3, -1, 8, 2**31 - 1, -(2**31)])
    assert np.array_equal(run(x, i)[0], x[np.clip(i, 0, 7)] + x[:5])
    text = tw.compile(MODEL, stop_after="import").text()
    assert text.count("arith.minsi") == 1  # the counter of the loop needs none


@pytest.mark.parametrize(
    "text",
    [
        "module attributes {a = " + "[" * 30000 + "]" * 30000 + "} {}",
        "func.func private @f(" + "tuple<" * 30000 + ">" * 30000 + ")",
        "#m = affine_map<(d0) -> (" + "(" * 30000 + "d0" + ")" * 30000 + ")>",
        "#m = affine_map<(d0) -> (" + "-" * 30000 + "d0)>",
        "#m = affine_map<(d0) -> (d0" + "".join(f" mod {i + 2} floordiv 3" for i in range(30000)) + ")>",
        "module {" * 30000 + "}" * 30000,
        'module attributes {a = "]]]]", b = ' + '["]]", ' * 30000,
    ],
)
def test_deep_nesting_is_an_error(text):
    with pytest.raises(ModelError, match=r"is not read: .*(nested|signs|operators)"):
        tw.compile(text + "\n")
    assert len(text) > MAX_NESTING


def bytecode():
    with use():
        return _stablehlo.serialize_portable_artifact(
            parse("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n %0 = stablehlo.add %x, %x : tensor<4xf32>\n"
                  " return %0 : tensor<4xf32>\n}"),
            _stablehlo.get_current_version(),
        )  # fmt: skip


def mutated(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.random()
        if kind < 0.5:
            data[at] = rng.randrange(256)
        elif kind < 0.75:
            del data[at : at + rng.randint(1, 9)]
        else:
            data[at:at] = data[at : at + rng.randint(1, 9)]
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_text(seed):
    rng, read = random.Random(seed), 0
    for _ in range(100):
        text = mutated(MODEL.encode(), rng).decode(errors="replace")
        try:
            read += len(list(load_mlir(text, "<text>").operations())) > 0
        except TilewrightError as e:
            assert e.message
    assert read < 100


def test_mutated_bytecode():
    data, rng = bytecode(), random.Random(0)
    assert len(list(load_mlir(data, "<bytes>").operations())) > 1
    for _ in range(8):
        try:
            load_mlir(mutated(data, rng), "<bytes>")
        except TilewrightError as e:
            assert e.message


def test_what_ends_the_reading_process_is_an_error(monkeypatch):
    from tilewright.frontends.mlir import text

    monkeypatch.setattr(text, "_READ", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ModelError, match="ended the process that read it"):
        load_mlir(b"ML\xefR...", "<bytes>")


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "m.mlir").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="neither MLIR text nor bytecode"):
        tw.compile(tmp_path / "m.mlir")
