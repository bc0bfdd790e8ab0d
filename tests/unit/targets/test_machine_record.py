"""Machines are typed records: rules take their numbers from them, and nothing outside `targets/` knows a processor."""

from __future__ import annotations

import ast
import functools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.machines import MACHINES

import tilewright
from tilewright.lang import te
from tilewright.schedule.machine import NO_LIMIT, Machine, Rate, lanes, one_thread
from tilewright.schedule.nest import For, walk_stmts
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu.thread_binding import processors
from tilewright.support.errors import PackageError, UsageError
from tilewright.targets import base
from tilewright.targets.c.describe import CDescription
from tilewright.targets.cpu.description import CpuDescription
from tilewright.targets.cuda.description import SM_90A
from tilewright.targets.mcu.machines import MACHINES as BOARDS
from tilewright.targets.mcu.machines import McuDescription
from tilewright.tune.space import Space

PACKAGE = Path(tilewright.__file__).parent
#: where the numbers of machines stand, and of what is counted
RECORDS = ("machine.py", "processor_costs.py", "block_costs.py", "executed.py")
SOURCES = {p.relative_to(PACKAGE).as_posix(): p.read_text() for p in PACKAGE.rglob("*.py")}
#: what processors and their instructions are called
FEATURES = re.compile(
    r"avx|\bsse\d|vnni|\bamx|neon|\bdotprod\b|i8mm|\bsve|cortex|thumb|smlad|\bmve\b|x86|aarch64|armv", re.I
)


# ---- the source ----------------------------------------------------------------------------------------------------


@functools.cache
def parsed(name: str) -> ast.Module:
    """A file of the package; only those are parsed whose text has what is looked for."""
    return ast.parse(SOURCES[name])


@pytest.mark.parametrize("probe", ["getattr", "hasattr"])
def test_no_machine_description_or_target_is_probed(probe):
    found = []
    for name in (n for n, text in SOURCES.items() if probe in text):
        for call in ast.walk(parsed(name)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == probe:
                of = ast.unparse(call.args[0])
                if re.search(r"\b(machine|description|target|describe\(\))$|^d$", of):
                    found.append(f"{name}, line {call.lineno}: {ast.unparse(call)}")
    assert not found, "\n".join(found)


def docstrings(tree: ast.AST) -> set[int]:
    """The strings that say something to people only."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [n.body for n in ast.walk(tree) if isinstance(n, owners) and n.body]
    return {id(b[0].value) for b in bodies if isinstance(b[0], ast.Expr)}


def test_only_targets_name_processors_and_their_features():
    found = []
    for name, text in SOURCES.items():
        if name.startswith("targets/") or not FEATURES.search(text):
            continue
        tree = parsed(name)
        said = docstrings(tree)
        for n in ast.walk(tree):
            if (
                isinstance(n, ast.Constant)
                and isinstance(n.value, str)
                and id(n) not in said
                and FEATURES.search(n.value.replace("x86_fp80", ""))  # a type of LLVM's language
            ):
                found.append(f"{name}, line {n.lineno}: {n.value!r}")
    assert not found, "\n".join(found)


def test_one_target_does_not_know_the_instructions_of_another():
    for name in SOURCES:
        if name.startswith("targets/cpu/"):
            strings = [
                n.value for n in ast.walk(parsed(name)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            assert not [s for s in strings if re.search(r"cortex|thumb|smlad|mve", s)], name


def test_costs_are_the_machines():
    """No number of a pass, the planner or a rule is said to be so many cycles."""
    found = []
    for path in (p for room in ("graph", "tensor", "schedule", "codegen") for p in (PACKAGE / room).rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = ""
        for number, line in enumerate(lines, 1):
            if line.startswith("#:"):
                comment += line
            elif comment:
                if "cycle" in (comment + line).lower() and path.name not in RECORDS:
                    found.append(f"{path.relative_to(PACKAGE)}, line {number}: {line}")
                comment = ""
    assert not found, "\n".join(found)


# ---- the record ----------------------------------------------------------------------------------------------------


def test_a_machine_with_nothing_special_has_an_answer_to_everything():
    m = Machine()
    assert (lanes(m), m.cores, m.dot_products, m.tiles, m.pairs, m.l3_bytes) == (1, 1, (), (), None, NO_LIMIT)
    assert not (
        m.winograd or m.split_sums or m.split_scans or m.split_windows or m.row_chains or m.image_lanes or m.stream_rows
    )
    assert (m.fma.in_flight, m.access.split_load, m.axes) == (8, 1.0, ())
    assert Rate(4, 2).cycles(20) == 10 and Rate(4, 2).cycles(1) == 4


@pytest.mark.parametrize("description", [MACHINES["zen4"], CDescription(l1_bytes=1 << 10), BOARDS[0]], ids=str)
def test_descriptions_are_data(description):
    assert isinstance(description, Machine)
    data = json.loads(json.dumps(description.to_json()))
    assert type(description).from_json(data) == description


def test_one_thread_of_any_machine():
    assert one_thread(MACHINES["zen4"]).cores == 1 and one_thread(BOARDS[0]) is BOARDS[0]
    alone = one_thread(SM_90A)  # its cores follow from its multiprocessors
    assert (alone.cores, alone.axes, alone.to_json()) == (1, SM_90A.axes, SM_90A.to_json())
    assert alone == one_thread(SM_90A) != SM_90A and hash(alone) == hash(one_thread(SM_90A)) and SM_90A.cores == 1056


def test_gpu_rules_hold_no_number_of_a_machine():
    """What an access, a barrier or a register is worth stands in records (`schedule/block_costs.py`), and there is one
    number of multiprocessors."""
    rules = {name: parsed(name) for name in SOURCES if name.startswith("schedule/rules/gpu/")}
    for name, tree in rules.items():
        held = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        said = re.compile(
            r"FAR|NEAR|LATENCY|(\w+_)?BARRIER|SHUFFLE|MEETING|ADDRESSES|(\w+_)?REGISTERS|EXPONENTIAL|ALONE"
        )
        assert not [n for n in held if said.fullmatch(n)], name
        assert "cores // " not in ast.unparse(tree), name
    few = replace(SM_90A, multiprocessors=3)
    assert (few.grid_costs.processors, few.split_scans, processors(few)) == (3, 3, 3)


def test_descriptions_of_other_versions_are_read_or_refused():
    data = MACHINES["avx2"].to_json()
    older = {k: v for k, v in data.items() if k not in ("line_bytes", "same_set_bytes")}
    assert CpuDescription.from_json(older) == MACHINES["avx2"]
    for damaged in ({**data, "wings": 2}, {k: v for k, v in data.items() if k != "features"}):
        with pytest.raises(PackageError, match="description of its processor cannot be read"):
            CpuDescription.from_json(damaged)
    with pytest.raises(PackageError, match="no machine 'cortex-m99'"):
        McuDescription.from_json({**BOARDS[0].to_json(), "name": "cortex-m99"})


def test_instructions_of_boards():
    found = {m.name: [d.name for d in m.dot_products] for m in BOARDS if m.dot_products}
    pairs = {n: ["smlad_ss"] for n in ("cortex-m4", "cortex-m7", "cortex-m33")}
    assert found == {**pairs, "cortex-m55": ["mve_ss"], "aarch64": ["neon_ss"]}


def test_pairs_of_bf16_are_an_instruction_of_the_record():
    assert MACHINES["zen4"].pairs is not None and MACHINES["zen4"].pairs.lanes == lanes(MACHINES["zen4"])
    assert MACHINES["avx2"].pairs is None


# ---- rules follow it -----------------------------------------------------------------------------------------------


def product(rows: int, depth: int, columns: int):
    a, b = te.placeholder((rows, depth), "a"), te.placeholder((depth, columns), "b", constant=True)
    k = te.reduce_axis(depth, "k")
    return te.kernel(te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c"))


@pytest.mark.parametrize("line", [64, 128])
def test_memory_is_asked_for_by_the_line(line):
    machine = replace(MACHINES["avx2"], line_bytes=line, cores=1)
    nest = schedule(product(1, 1024, 1024), machine).nest
    asked = [f.prefetch for f in walk_stmts(nest.body) if isinstance(f, For) and f.prefetch]
    assert asked
    for hints in asked:
        flat = [str(index) for _, index in hints]
        assert len(flat) == len(set(flat))
    panel = 1024 * 4 * sum(len(h) for h in asked)
    assert panel * line >= 1 << 18  # no line is left out


def test_sums_in_flight_follow_the_rate_of_an_addition():
    """Columns of a few sums: as many rows are added beside each other as hide an addition's latency."""

    @dataclass(frozen=True)
    class Slow(CpuDescription):
        @property
        def fma(self) -> Rate:
            return Rate(2, 1)

    x, r = te.placeholder((4096, 8), "x"), te.reduce_axis(4096, "r")
    kernel = te.kernel(te.compute((8,), lambda j: te.sum(x[r, j], r), "y"))
    usual = MACHINES["avx2"]
    slow = Slow(**{f: getattr(usual, f) for f in usual.__dataclass_fields__})
    made = [Space(kernel, m).default for m in (usual, slow)]
    assert {c.rule for c in made} == {"few_columns"}
    assert [c.decisions["sums_y"] for c in made] == [8, 2]


# ---- targets -------------------------------------------------------------------------------------------------------

ASKED = {
    "is tuned": lambda t: t.tuning() is not None,
    "keeps packages": lambda t: t.toolchain(),
    "keeps kernels": lambda t: t.memo(t.describe()) is not None,
    "is examined": lambda t: t.checks(),
    "is measured": lambda t: t.machine_name(),
    "exports": lambda t: t.settings is not None,
    "keeps states": lambda t: t.keeps_states,
    "takes sizes": lambda t: t.takes_sizes,
    "has a coprocessor": lambda t: t.coprocessor is not None,
    "has members": lambda t: t.members,
}
ABILITIES = {
    "cpu": set(ASKED) - {"exports", "has a coprocessor", "has members"},
    "c": {"exports", "takes sizes"},
    "cortex-m4": {"exports"},
    "web": {"exports"},
    "cpu+systolic32": {"keeps states", "has a coprocessor"},
    "opencl+cpu": {"keeps states", "has members"},
}


@pytest.mark.parametrize("name", ABILITIES)
def test_a_target_says_what_it_can(name):
    target = base.find(name)
    assert {what for what, can in ASKED.items() if can(target)} == ABILITIES[name]


def test_what_a_target_cannot_has_one_clear_error():
    """Of each method that a target need not have; what it runs instead says so when it is asked to run."""

    class Bare(base.Target):
        name, doc = "bare", ""

        def describe(self):
            return Machine()

        def stages(self):
            return ()

    bare = Bare()
    assert bare.recorded == "bare" and not any(can(bare) for can in ASKED.values())
    assert not (bare.forms() or bare.device_list() or bare.attached_to(bare) or bare.start(1) or bare.check({}))
    with pytest.raises(UsageError, match="'bare' has no parameters") as e:
        bare.configured({"array": "16", "bus": "8"})
    assert e.value.hint == "leave out :array=16,bus=8"
    with pytest.raises(UsageError, match="has no emulator"):
        bare.emulate(None, [])
    with pytest.raises(UsageError, match="cannot continue from"):
        bare.enter(None, Path("x"))
    with pytest.raises(UsageError, match="code for bare does not run in this process"):
        bare.load(None, 1).context()


@pytest.fixture
def own():
    """Forget what a test registers."""
    yield
    for name in list(base._TARGETS._added):
        base._TARGETS.remove(name)


def a_target(name: str) -> base.Target:
    what = dict.fromkeys(("describe", "stages"), lambda *_: None)
    return type("Some", (base.Target,), {"name": name, "doc": "", **what})()


def test_targets_of_a_program_of_its_own(own):
    mine = a_target("mine")
    base.register(mine)
    base.register(mine)
    assert base.find("mine") is mine and base.of(mine) is mine
    with pytest.raises(UsageError, match="a target 'cpu' already"):
        base.register(a_target("cpu"))
    with pytest.raises(UsageError, match="no target") as e:
        base.register(SimpleNamespace(name="half"))
    assert "describe" in e.value.hint
    with pytest.raises(UsageError, match="no target") as e:
        base.register(SimpleNamespace(name="all", doc="", describe=None, stages=None))
    assert "inherit" in e.value.hint
