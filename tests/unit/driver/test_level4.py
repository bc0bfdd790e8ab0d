"""Level 4 is entered from outside: with traces for kernels, and with the nests of a dumped file."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli import main
from tilewright.driver.compiler import compile_state
from tilewright.schedule.schedule import ScheduleError
from tilewright.support.errors import ModelError, UsageError

MODEL = """
func.func @main(%x: tensor<6x16xf32> {tw.name = "x"}, %w: tensor<16x24xf32> {tw.name = "w"})
    -> (tensor<6x24xf32> {tw.name = "y"}) {
  %0 = "tw.matmul"(%x, %w) : (tensor<6x16xf32>, tensor<16x24xf32>) -> tensor<6x24xf32>
  %1 = "tw.softmax"(%0) {axis = 1 : i64} : (tensor<6x24xf32>) -> tensor<6x24xf32>
  return %1 : tensor<6x24xf32>
}
"""
PLAIN = {"threads": 1, "tuned": False, "jobs": 1}
#: for the product: one loop more
SPLIT = 's.split("{loop}", 3)\n'


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((6, 16), np.float32), "w": rng.standard_normal((16, 24), np.float32)}


@pytest.fixture(scope="module")
def plain():
    return compile_state(MODEL, cache=False, **PLAIN)


@pytest.fixture(scope="module")
def product(plain) -> str:
    return next(n for n in plain[0].kernels if n.startswith("matmul"))


def first_loop(plain, name: str) -> str:
    return plain[0].kernels[name].stages[0].dims[0][0]


def run(executable) -> np.ndarray:
    return executable.run(inputs())[0]


def test_a_trace_is_what_the_kernel_becomes(plain, product):
    trace = SPLIT.format(loop=first_loop(plain, product))
    state, made = compile_state(MODEL, schedules={product: trace}, cache=False, **PLAIN)
    assert [step.name for step in state.schedules[product].schedule.trace] == ["split"]
    assert state.schedules[product].rule == "given"
    other = next(n for n in state.nests if n != product)
    assert str(state.nests[other]) == str(plain[0].nests[other])
    np.testing.assert_allclose(run(made), run(plain[1]), rtol=1e-5, atol=1e-6)
    facts = next(k for k in made.package.report["kernels"] if k["symbol"] == product)
    assert facts["kind"] == "given" and facts["trace"][0].endswith(f"s.split({first_loop(plain, product)!r}, 3)")


def test_the_longest_beginning_of_a_name_counts(plain, product):
    loop = first_loop(plain, product)
    given = {"mat": "s.unroll('nowhere')", product[:8]: SPLIT.format(loop=loop)}
    state, _ = compile_state(MODEL, schedules={product[:8]: given[product[:8]]}, cache=False, **PLAIN)
    assert [step.name for step in state.schedules[product].schedule.trace] == ["split"]
    with pytest.raises(UsageError, match="names 'mat', and there is no such kernel"):
        tw.compile(MODEL, schedules=given, cache=False, **PLAIN)


def test_a_name_without_a_kernel(product):
    with pytest.raises(UsageError, match="names 'conv', and there is no such kernel") as e:
        tw.compile(MODEL, schedules={"conv": ""}, **PLAIN)
    assert product in e.value.hint


def test_a_refused_step_names_kernel_and_step(product):
    with pytest.raises(ScheduleError) as e:
        tw.compile(MODEL, schedules={product: "\ns.unroll('nowhere')"}, **PLAIN)
    assert "there is no loop nowhere (line 2 of the trace: s.unroll('nowhere'))" in e.value.message
    assert e.value.operator == f"kernel {product}"
    with pytest.raises(UsageError, match=r"line 1 of the trace: s\.unroll"):
        tw.compile(MODEL, schedules={product: "s.unroll()"}, **PLAIN)
    with pytest.raises(UsageError, match="is no primitive"):
        tw.compile(MODEL, schedules={product: "s.nest()"}, **PLAIN)


@pytest.mark.parametrize("given", [{"matmul": 3}, {"matmul": ["s.split('i', 4)"]}, "s.split('i', 4)"])
def test_other_things_than_traces(given):
    with pytest.raises(UsageError, match="schedules"):
        tw.compile(MODEL, schedules=given, **PLAIN)


def test_what_traces_gives_is_taken_back(plain):
    found = tw.compile(MODEL, stop_after="schedule", **PLAIN).traces()
    assert found
    state, _ = compile_state(MODEL, schedules=found, cache=False, **PLAIN)
    assert {n: str(state.nests[n]) for n in found} == {n: str(plain[0].nests[n]) for n in found}
    assert all(state.schedules[n].rule == "given" for n in found)


def test_an_operators_own_nest_takes_steps():
    """A kernel with a loop nest of its own begins with that one."""
    text = """
    func.func @main(%x: tensor<2x300xf32> {tw.name = "x"}) -> (tensor<2x300xf32> {tw.name = "y"}) {
      %0 = "tw.cumsum"(%x) {axis = 1 : i64, exclusive = false, reverse = false}
        : (tensor<2x300xf32>) -> tensor<2x300xf32>
      return %0 : tensor<2x300xf32>
    }
    """
    state, made = compile_state(text, cache=False, **PLAIN)
    (name,) = state.nests
    again, same = compile_state(text, schedules={name: str(state.schedules[name].schedule.trace)}, cache=False, **PLAIN)
    assert str(again.nests[name]) == str(state.nests[name])
    x = np.ones((2, 300), np.float32)
    assert same(x)[0].tobytes() == made(x)[0].tobytes()


def test_a_model_that_is_kept_is_another_with_a_schedule(tmp_path, monkeypatch, plain, product):
    """The caches know of it."""
    from onnx import TensorProto, helper, save

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    file = tmp_path / "m.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), file)
    kinds = []
    for given in (None, {"exp": ""}, None, {"exp": ""}):
        made = tw.compile(file, schedules=given, threads=1, jobs=1)
        kinds.append(made.package.report["kernels"][0]["kind"])
    assert kinds[0] == kinds[2] != "given" and kinds[1] == kinds[3] == "given"


def test_open_shapes_have_no_kernels_to_name():
    text = MODEL.replace("tensor<6x", "tensor<?x")
    with pytest.raises(UsageError, match="no kernels yet that option 'schedules' could name"):
        tw.compile(text, schedules={"matmul": ""}, **PLAIN)


def test_on_the_command_line(tmp_path, plain, product, capsys):
    (tmp_path / "m.mlir").write_text(MODEL)
    (tmp_path / "t.txt").write_text(SPLIT.format(loop=first_loop(plain, product)))
    given = ["--schedule", f"matmul={tmp_path / 't.txt'}", "--threads", "1", "--no-cache"]
    assert main(["explain", str(tmp_path / "m.mlir"), "--json", *given]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert kernels[product]["kind"] == "given"
    for wrong in ("matmul", f"matmul={tmp_path / 'no.txt'}"):
        assert main(["run", str(tmp_path / "m.mlir"), "--schedule", wrong]) == 2


# ---- nests ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def dumped(tmp_path):
    tw.compile(MODEL, dump=tmp_path, cache=False, **PLAIN)
    (path,) = tmp_path.glob("*-schedule.txt")
    return path


def test_dumped_nests_go_on_to_the_end(dumped, plain, tmp_path):
    package = tmp_path / "m.tw"
    assert main(["opt", str(dumped), "--from", "schedule", "--threads", "1", "-o", str(package)]) == 0
    assert run(tw.load(package, threads=1)).tobytes() == run(plain[1]).tobytes()
    state, made = compile_state(dumped, start_after="schedule", verify=True, **PLAIN)
    assert {n: str(x) for n, x in state.nests.items()} == {n: str(x) for n, x in plain[0].nests.items()}
    assert {k["symbol"] for k in made.package.report["kernels"]} == set(state.nests)


def test_an_edited_nest_is_what_runs(dumped, plain):
    text = dumped.read_text()
    assert "addf(" in text
    dumped.write_text(text.replace("addf(", "subf("))
    changed = tw.compile(dumped, start_after="schedule", **PLAIN)
    assert not np.allclose(run(changed), run(plain[1]))
    with pytest.raises(tw.errors.CheckError):
        tw.compile(dumped, start_after="schedule", verify=True, **PLAIN)


def test_the_nests_of_another_target(dumped, tmp_path):
    direct = tw.compile(MODEL, target="c", dump=tmp_path / "c")
    (path,) = (tmp_path / "c").glob("*-schedule.txt")
    assert tw.compile(path, start_after="schedule", target="c").package.objects == direct.package.objects


def test_damaged_nests(dumped, product):
    text = dumped.read_text()

    def refused(new: str) -> str:
        dumped.write_text(new)
        with pytest.raises(ModelError) as e:
            tw.compile(dumped, start_after="schedule", **PLAIN)
        return e.value.message

    assert "is not what was dumped after schedule: line 1" in refused("hello world")
    assert "line 1: expected a nest" in refused("x = 1\n" + text)
    assert "line 2: expected a dtype" in refused("\n" + text.replace("f32[", "f33[", 1))
    assert f"has no nest for kernel {product}" in refused(text.replace(f"def {product}(", "def other("))
    last = text[text.rindex("def ") :]
    assert "has a nest other, which is no kernel" in refused(text + last.replace(last.split("(")[0], "def other"))
    at = text.index(f"def {product}(")
    assert "for f32[6, 16]" in refused(text[:at] + text[at:].replace("f32[6, 16]", "f32[6, 15]", 1))
    dumped.write_text(text)
    dumped.with_suffix(".graph.mlir").unlink()
    assert "has no graph beside it" in refused(text)
