"""Profiles: what is counted, what is measured, and the forms they are shown in."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.dom import minidom

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright as tw
from tilewright.cli import app
from tilewright.lang import te
from tilewright.program.program import COPY, BufferRef, Call
from tilewright.program.timeline import CALL, JOB_BEGIN, JOB_END, PER_CALL, RUN_END, Stamps, Timeline
from tilewright.report.profile_text import disturbance
from tilewright.runtime.executable import Executable
from tilewright.runtime.profile import Traffic, least_time
from tilewright.schedule.ceilings import Ceilings, Level, ceilings
from tilewright.schedule.facts import EXPECTED, fell, kernel_facts, what
from tilewright.schedule.parse import parse_nest
from tilewright.schedule.rules import rules, schedule
from tilewright.schedule.work import work_of
from tilewright.support.errors import UsageError
from tilewright.targets.base import find
from tilewright.targets.cpu.description import host
from tilewright.targets.cpu.program import program_llvm, runtime_llvm

MEASURED = Ceilings(
    "a machine",
    2,
    {"f32": 100e9, "f64": 50e9},
    (
        Level("L1", 64 << 10, 400e9, 200e9, 300e9),
        Level("L2", 4 << 20, 200e9, 100e9, 150e9),
        Level("DRAM", None, 20e9, 10e9, 15e9),
    ),
)

MODEL = """
func.func @main(%x: tensor<64x96xf32>, %w: tensor<96x80xf32>) -> tensor<64x80xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<64x96xf32>, tensor<96x80xf32>) -> tensor<64x80xf32>
  return %0 : tensor<64x80xf32>
}
"""


@pytest.fixture(autouse=True)
def no_measuring(monkeypatch):
    """Measuring the machine takes seconds: only the test of it does."""
    monkeypatch.setattr("tilewright.runtime.profile.ceilings", lambda *a, **k: MEASURED)


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


# ---- what there is to do -------------------------------------------------------------------------------------------


def matmul(m, n, k):
    x, w = te.placeholder((m, k), "x"), te.placeholder((k, n), "w", constant=True)
    r = te.reduce_axis(k, "r")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], r), "y"))


def test_a_matmul_has_two_operations_for_each_product():
    work = work_of(matmul(6, 7, 8))
    assert (work.flops, work.integer_ops, work.precision) == (2 * 6 * 7 * 8, 0, "f32")
    assert work.touched == (4 * 6 * 8, 4 * 8 * 7, 4 * 6 * 7)


def test_functions_and_comparisons_count_and_index_arithmetic_does_not():
    x = te.placeholder((16,), "x")
    y = te.compute((16,), lambda i: te.where(x[15 - i] > 0.0, te.exp(x[15 - i]) * 2.0, 0.0), "y")
    assert work_of(te.kernel(y)).flops == 16 * 3


def test_a_gather_touches_no_more_than_it_reads():
    table, ids = te.placeholder((1000, 8), "table"), te.placeholder((5,), "ids", "i64")
    inside = te.compute((5, 8), lambda i, j: table[te.minimum(te.maximum(ids[i], 0), 999), j], "y")
    work = work_of(te.kernel(inside))
    assert dict(zip(("table", "ids", "y"), sorted(work.touched, reverse=True), strict=True)) == {
        "table": 4 * 5 * 8,
        "ids": 4 * 5 * 8,
        "y": 8 * 5,
    }


def test_a_slice_touches_its_part():
    x = te.placeholder((100,), "x")
    assert work_of(te.kernel(te.compute((10,), lambda i: x[i * 2 + 30] + 1.0, "y"))).touched == (40, 40)


def test_a_schedule_does_not_change_the_work():
    kernel = matmul(37, 45, 29)
    about = kernel_facts(kernel, schedule(kernel, host()))
    assert about["flops"] == 2 * 37 * 45 * 29 and about["does"] == "contraction"
    assert about["trace"] and about["fell"] == "" and about["decisions"]["tile"]
    json.dumps(about)


def test_loops_are_as_long_as_each_task_has_them():
    """Two tasks a row, of 32 and of 17 numbers."""
    nest = parse_nest("""
def f(x: f32[6, 49], y: out(f32[6, 49])):
    for task in thread(12):
        for o in serial((min(32, task % 2 * -32 + 49) + 3) // 4):
            for i in serial(min(4, min(32, task % 2 * -32 + 49) - o * 4)):
                s0: y[task // 2, task % 2 * 32 + o * 4 + i] = addf(x[task // 2, task % 2 * 32 + o * 4 + i], f32(1.0))
""")
    work = work_of(SimpleNamespace(opaque=True, params=nest.params), nest)
    assert (work.flops, work.touched) == (6 * 49, (4 * 6 * 49, 4 * 6 * 49))


def test_operators_with_a_loop_nest_are_counted_in_it():
    run = tw.compile(ATTENTION, tuned=False)
    (about,) = [k for k in run.package.report["kernels"] if k["does"] == "attention"]
    products = 2 * 2 * (2 * 16 * 16 * 8)  # two products of heads x queries x keys x depth
    assert products <= about["flops"] < 2 * products
    assert about["touched"] == [4 * 2 * 16 * 8] * 4


ATTENTION = """
func.func @main(%q: tensor<1x2x16x8xf32>, %k: tensor<1x2x16x8xf32>, %v: tensor<1x2x16x8xf32>)
    -> tensor<1x2x16x8xf32> {
  %0 = "tw.attention"(%q, %k, %v) {operandSegmentSizes = array<i32: 1, 1, 1, 0>, scale = 0.5 : f64}
      : (tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>, tensor<1x2x16x8xf32>) -> tensor<1x2x16x8xf32>
  return %0 : tensor<1x2x16x8xf32>
}
"""


# ---- rules that a kernel fell to -----------------------------------------------------------------------------------


def test_the_rules_that_are_expected_exist():
    assert set(EXPECTED.values()) <= {module.NAME for module in rules()}


def test_a_kernel_that_falls_to_the_general_rule_says_why():
    x, w = te.placeholder((8, 8), "x"), te.placeholder((8, 8), "w")
    k, r = te.reduce_axis(8, "k"), te.reduce_axis(8, "r")
    t = te.compute((8, 8), lambda i, j: te.sum(x[i, k] * w[k, j], k), "t")
    kernel = te.kernel(te.compute((1,), lambda i: te.sum(t[r, r] * t[7 - r, r], r), "y"))
    made = schedule(kernel, host())
    assert what(kernel) == "contraction"
    if made.rule == "general":
        reason = fell(kernel, made)
        assert "contraction: not a single reduction" in reason and "rows:" in reason
    assert fell(matmul(8, 8, 8), schedule(matmul(8, 8, 8), host())) == ""


def test_a_single_row_has_a_rule():
    text = """func.func @main(%x: tensor<1x1000xf32>) -> tensor<1x1000xf32> {
      %0 = "tw.softmax"(%x) {axis = 1 : i64} : (tensor<1x1000xf32>) -> tensor<1x1000xf32>
      return %0 : tensor<1x1000xf32>
    }"""
    run = tw.compile(text, threads=2)
    (about,) = run.package.report["kernels"]
    assert about["kind"] == "rows" and not about["fell"]
    x = np.random.default_rng(0).standard_normal((1, 1000)).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max())
    np.testing.assert_allclose(run(x)[0], e / e.sum(), rtol=1e-5)


def test_explain_marks_what_fell(small_package):
    small_package.report["kernels"][0] |= {
        "kind": "general",
        "does": "contraction",
        "fell": "rows: too few",
        "flops": 9,
    }
    text = Executable(small_package, 1).explain()
    assert "general (!)" in text and "add (contraction) fell to general: rows: too few" in text
    small_package.report["kernels"][0]["fell"] = ""
    assert "(!)" not in Executable(small_package, 1).explain()


# ---- time stamps ---------------------------------------------------------------------------------------------------


def test_no_clock_in_a_program_that_is_not_timed(small_package):
    program = small_package.program
    texts = [program_llvm(program, t) + runtime_llvm(host(), t, swaps=False) for t in (False, True)]
    plain, timed = (t.count("call void @tw_stamp") for t in texts)
    assert plain == 0 and timed >= 2 * len(program.calls) + 4


def stamps_of(*threads, total=1000):
    """Stamps from (arrive, begin, end) a call and thread; None: not run."""
    stamps = Stamps(len(threads), len(threads[0]))
    for row, calls in zip(stamps.ticks, threads, strict=True):
        row[JOB_BEGIN], row[JOB_END] = 1, total
        for i, call in enumerate(calls):
            if call:
                row[CALL + PER_CALL * i : CALL + PER_CALL * (i + 1)] = call
    stamps.ticks[0, :2] = 0, total
    stamps.ticks[0, RUN_END] = total
    return stamps


def test_times_of_calls_never_overlap():
    # the second call has no barrier before it: thread 1 begins it while thread 0 is still in the first
    line = Timeline.of(stamps_of([(0, 10, 100), (0, 100, 200)], [(0, 20, 60), (0, 60, 150)], total=300), 1.0)
    assert line.seconds().tolist() == [90, 100] and line.total == 300
    assert line.busy().tolist() == [[90, 100], [40, 90]]


def test_waiting_is_from_arrival_to_begin():
    line = Timeline.of(stamps_of([(0, 10, 100), (105, 120, 200)], [(0, 20, 60), (60, 121, 150)], total=300), 1.0)
    assert line.waiting().tolist() == [[0, 15], [0, 61]]
    assert line.seconds().tolist() == [90, 80]


def test_a_call_of_one_thread():
    line = Timeline.of(stamps_of([(0, 10, 100), (110, 120, 200)], [None, (20, 121, 150)], total=300), 1.0)
    assert line.seconds().tolist() == [90, 80] and line.busy()[1].tolist() == [0, 29]


def test_a_thread_that_comes_late_makes_no_call_short(small_package, x, monkeypatch):
    """Thread 0 begins the second call when thread 1 has nearly done the work of both: the call has not begun then."""
    calls = [(0, 10, 100), (105, 290, 300), None, None], [(0, 20, 60), (60, 121, 299), None, None]
    run = Executable(small_package, 2)
    monkeypatch.setattr(run, "_stamped", lambda *_: [stamps_of(*calls, total=300)])
    (times,) = run.time_calls([x], runs=1) / run._runner.seconds_per_tick
    assert times.round(6).tolist() == [90, 179, 0, 0]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_calls_of_every_run_take_less_than_the_run(small_package, x, threads):
    run = Executable(small_package, threads)
    for line in run.timelines([x], 20):
        assert line.begin.shape == (threads, 4)
        assert 0 < line.seconds().sum() <= line.total
        assert (line.busy().sum(axis=1) + line.waiting().sum(axis=1) <= line.total).all()
        assert not np.isnan(line.begin[0]).any()


def test_a_profile_does_not_change_results(small_package, small_reference, x):
    run = Executable(small_package, 2)
    run.profile([x], repeats=3)
    assert all(np.array_equal(a, b) for a, b in zip(run(x), small_reference(x), strict=True))
    run.close()
    assert run.profile([x], repeats=1).calls


# ---- the profile ---------------------------------------------------------------------------------------------------


def test_entries(small_package, x):
    profile = Executable(small_package, 2).profile([x], repeats=5)
    assert [c.symbol for c in profile.calls] == ["add", "mul", "add", COPY]
    assert [k.calls for k in sorted(profile.kernels, key=lambda k: k.symbol)] == [2, 1, 1]
    assert sorted(profile.kernels, key=lambda k: -k.seconds) == list(profile.kernels)
    total = profile.total
    assert total.seconds == pytest.approx(sum(c.seconds for c in profile.calls))
    assert total.bytes == sum(c.bytes for c in profile.calls) == 4 * 4096 * (3 + 2 + 3 + 2)  # mul reads one twice
    assert profile.calls[-1].operations == 0 and profile.calls[0].operations is None
    assert profile.low <= profile.seconds <= profile.high and len(profile.per_thread) == 2
    assert "total" in str(profile) and "/b/Mul +1" in str(profile)
    with pytest.raises(UsageError, match="repeats must be an integer of at least 1"):
        Executable(small_package, 2).profile([x], repeats=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_model(threads, tmp_path):
    run = tw.compile(MODEL, threads=threads)
    inputs = [np.ones(i.shape, np.float32) for i in run.inputs]
    profile = run.profile(inputs, repeats=5)
    (kernel,) = profile.kernels
    assert kernel.operations == 2 * 64 * 80 * 96 and kernel.does == "contraction" and kernel.limit
    assert kernel.gflops == pytest.approx(kernel.operations / kernel.seconds / 1e9)
    assert kernel.intensity == pytest.approx(kernel.operations / (4 * (64 * 96 + 96 * 80 + 64 * 80)))
    assert kernel.efficiency == pytest.approx(kernel.ideal / kernel.seconds)
    assert profile.facts[kernel.symbol]["trace"] and profile.threads == threads
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=threads).profile(inputs, repeats=2)
    assert again.kernels[0].operations == kernel.operations and again.facts == json.loads(json.dumps(profile.facts))


def test_json(small_package, x):
    data = json.loads(json.dumps(Executable(small_package, 2).profile([x], repeats=3).to_json(), allow_nan=False))
    assert data["format"] == 1 and data["threads"] == 2 and data["repeats"] == 3
    assert {"symbol", "names", "rule", "seconds", "low", "high", "share", "operations", "read", "written", "gflops",
            "gbytes", "intensity", "efficiency", "limit", "balance", "ideal"} <= set(data["kernels"][0])  # fmt: skip
    assert len(data["calls"]) == 4 and len(data["timeline"]["begin"]) == 2 and len(data["timeline"]["begin"][0]) == 4
    assert Ceilings.from_json(data["ceilings"]) == MEASURED


def test_a_model_with_open_shapes(tmp_path):
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Exp", ["x"], ["y"], name="exp"),
        helper.make_node("Unique", ["y"], ["at"], name="unique"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 8]) for n in "xy")
    at = helper.make_tensor_value_info("at", TensorProto.FLOAT, [None])
    graph = helper.make_graph(nodes, "open", [x], [y, at])
    run = tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), threads=2)
    profile = run.profile({"x": np.ones((4, 8), np.float32)}, repeats=3)
    host = [c for c in profile.calls if c.rule == "host"]
    assert [c.symbol for c in host] == ["host.Unique"] and host[0].names and host[0].efficiency is None
    assert any(c.does == "elementwise" for c in profile.calls) and profile.timeline is None
    assert profile.seconds > 0 and host[0].seconds > 0 and len(profile.per_thread) == 2
    json.dumps(profile.to_json(), allow_nan=False)
    minidom.parseString(profile.html().replace("<!DOCTYPE html>", ""))
    with pytest.raises(UsageError, match="repeats must be"):
        run.profile({"x": np.ones((4, 8), np.float32)}, repeats=True)


class Page(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("href", "src")]


def test_html_is_well_formed_and_needs_nothing_else(small_package, x):
    small_package.report["kernels"][0] |= {
        "flops": 4096,
        "does": "elementwise",
        "fell": "rows: <b> & 'c'",
        "trace": ["s.x()"],
    }
    small_package.report["model"] = "a <model> & more"
    text = Executable(small_package, 2).profile([x], repeats=3).html()
    document = minidom.parseString(text.replace("<!DOCTYPE html>", ""))  # XML: every tag closed, everything escaped
    assert len(document.getElementsByTagName("svg")) > 2
    page = Page(text)
    assert page.links == [] and "http" not in text.replace("http-equiv", "")
    assert page.tags.count("details") == 3 and page.tags.count("circle") == 1
    assert "a &lt;model&gt; &amp; more" in text and "nan" not in text.lower().split("<script>")[0].replace("name", "")


def test_html_shows_layers_and_rules_without_a_click(small_package, x):
    small_package.report["kernels"][0] |= {"flops": 4096, "kind": "rows"}
    profile = Executable(small_package, 2).profile([x], repeats=3)
    text = profile.html()
    kernels = [e for e in profile.kernels if e.names]
    shown = text[text.index("class='row head'") :]
    shown = re.sub(r"(?s)<div class='more'>.*?</div>", "", shown)
    assert kernels and all(f">{e.names[0]}" in shown for e in kernels)
    legend = re.findall(r"<span><i class='(f-\w+)'></i>([^<]+)</span>", text)
    assert len({c for c, _ in legend}) == len({r for _, r in legend}) >= 2, "each rule has a colour of its own"
    assert "thread 0</div>" in text


def test_a_disturbed_profile_says_so_on_top(small_package, x):
    measured = Executable(small_package, 1).profile([x], repeats=3)
    whole = measured.total.seconds
    calls = tuple(replace(c, share=c.seconds / whole) for c in measured.calls)
    calm = replace(measured, calls=calls, seconds=whole, low=whole * 0.99, high=whole * 1.01, between=0.0)
    assert disturbance(calm) == "" and "class='warning'" not in calm.html() and "disturbed" not in str(calm)
    for other, said in (
        (replace(calm, seconds=whole / 1.5, calls=tuple(replace(c, share=1.5 * c.share) for c in calls)), "150.0% of"),
        (replace(calm, high=whole * 1.5), "the middle half of the runs took"),
    ):
        text = other.html()
        assert said in disturbance(other) and said in str(other)
        assert text.index("class='warning'>disturbed") < text.index("class='tiles'")


# ---- ceilings ------------------------------------------------------------------------------------------------------


def test_the_least_time_of_a_kernel():
    def call(*refs):
        return Call("k", tuple(refs), (len(refs) - 1,))

    arena, constant = BufferRef("arena", 0, 0, 1000), BufferRef("constant", 0, 0, 8000)
    near = Traffic.of(call(arena, arena, BufferRef("arena", 0, 2000, 1000)), None)
    assert (near.near_read, near.near_written, near.far_read) == (1000, 1000, 0)
    assert least_time(near, 0, "f32", 1 << 30, MEASURED) == (pytest.approx(2000 / 300e9), "L1")
    far = Traffic.of(call(constant, arena), None)
    seconds, limit = least_time(far, 10, "f32", 1 << 30, MEASURED)
    assert limit == "DRAM" and seconds == pytest.approx(8000 / 20e9 + 1000 / 200e9)
    assert least_time(far, 10**6, "f64", 1 << 30, MEASURED) == (pytest.approx(1e6 / 50e9), "f64 arithmetic")
    assert Traffic.of(call(constant, arena), [80, 1000]).far_read == 80


def test_ceilings_are_kept(tmp_path, monkeypatch):
    class Target:
        name, measured = "t", 0

        def machine_name(self):
            return "m"

        def measure_ceilings(self, threads):
            self.measured += 1
            level = Level("DRAM", None, 1.0 + self.measured, 1.0, 1.0)
            return Ceilings("m", threads, {"f32": 10.0 - self.measured}, (level,), quiet=self.measured > 1)

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    target = Target()
    assert ceilings(target, 1).compute["f32"] == 9
    second = ceilings(target, 1)  # the first was measured on a busy machine: again, and the higher numbers stay
    assert target.measured == 2 and second.quiet and second.compute["f32"] == 9 and second.levels[0].read == 3
    assert ceilings(target, 1) == second and target.measured == 2
    assert ceilings(target, 1, again=True).compute["f32"] == 7 and target.measured == 3
    (path,) = (tmp_path / "ceilings").iterdir()
    path.write_text(path.read_text()[:50])
    assert ceilings(target, 1).quiet and target.measured == 4
    with pytest.raises(UsageError, match="has no measured ceilings"):
        ceilings(find("c"), 1)


def test_this_machine_can_be_measured(monkeypatch):
    from tilewright.targets.cpu import ceilings as cpu

    monkeypatch.setattr(cpu, "_SECONDS", 0.002)
    monkeypatch.setattr(cpu, "_LARGEST", 8 << 20)
    found = cpu.measure(1)
    assert found.compute["f32"] > 1e8 and found.levels[-1].capacity is None
    assert all(v > 1e7 for level in found.levels for v in (level.read, level.write, level.copy))
    assert Ceilings.from_json(json.loads(json.dumps(found.to_json()))) == found


# ---- the command ---------------------------------------------------------------------------------------------------


def test_command(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    files = {"--json": tmp_path / "p.json", "--html": tmp_path / "p.html"}
    arguments = [str(w) for pair in files.items() for w in pair]
    done = CliRunner().invoke(
        app, ["profile", str(tmp_path / "m.mlir"), "--threads", "1", "--repeats", "3", *arguments]
    )
    assert done.exit_code == 0, done.output
    assert "contraction" in done.output and "in kernels" in done.output and "total" in done.output
    assert json.loads(files["--json"].read_text())["kernels"][0]["operations"] == 2 * 64 * 80 * 96
    minidom.parseString(files["--html"].read_text().replace("<!DOCTYPE html>", ""))


def test_command_errors(tmp_path):
    (tmp_path / "m.mlir").write_text(MODEL)
    done = CliRunner().invoke(app, ["profile", str(tmp_path / "m.mlir"), "--html", str(tmp_path / "no" / "p.html")])
    assert isinstance(done.exception, UsageError) and "does not exist" in str(done.exception)
    done = CliRunner().invoke(app, ["profile", str(tmp_path / "m.mlir"), "--stop-after", "fuse"])
    assert isinstance(done.exception, UsageError)


# ---- traces and explain as data ------------------------------------------------------------------------------------


def test_a_trace_has_each_call_on_each_thread_that_runs_it():
    inputs = [np.ones((64, 96), np.float32), np.ones((96, 80), np.float32)]
    found = tw.compile(MODEL, threads=2).profile(inputs, repeats=3)
    data = json.loads(json.dumps(found.trace()))
    kernels = [e for e in data["traceEvents"] if e["ph"] == "X" and e["cat"] != "barrier"]
    ran = int(np.count_nonzero(~np.isnan(found.timeline.begin)))
    assert len(kernels) == ran and {e["tid"] for e in kernels} <= set(range(found.threads))
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in kernels)
    assert {e["args"]["operations"] for e in kernels} == {call.operations for call in found.calls}
    threads = [e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"]
    assert threads == [f"thread {t}" for t in range(found.threads)]


def test_explain_as_json_says_what_the_text_says(tmp_path, capsys):
    from tilewright.cli import main

    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    assert main(["explain", str(path), "--json", "--threads", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    run = tw.compile(MODEL, threads=1)
    assert data["memory"]["peak"] == run.memory.peak and data["threads"] == 1
    assert [c["symbol"] for c in data["calls"]] == [c.symbol for c in run.package.program.calls]
    assert data["inputs"] == [
        {"name": "arg0", "dtype": "f32", "shape": [64, 96]},
        {"name": "arg1", "dtype": "f32", "shape": [96, 80]},
    ]
    assert all(k["code"] > 0 for k in data["kernels"].values())


def test_a_notebook_shows_inputs_and_escapes_names():
    model = MODEL.replace("%x: tensor<64x96xf32>,", '%x: tensor<64x96xf32> {tw.name = "<b>"},')
    shown = tw.compile(model, threads=1)._repr_html_()
    assert "<td>64x96</td>" in shown and "&lt;b&gt;" in shown and "<td><b></td>" not in shown
