"""AMX: kernels on tile registers, run by the processor where it has them and elsewhere by an emulator of the
instructions (`amx_emulator.c`); what is chosen, emitted and refused.
"""

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.machines import LANES16, RULES_AVX512

import tilewright as tw
from tilewright.codegen.llvm.assemble import assembly, mlir_to_llvm
from tilewright.driver.build_program import pack_array
from tilewright.lang import te
from tilewright.report.doctor import examine
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import CompileError, PackageError
from tilewright.targets.cpu import amx
from tilewright.targets.cpu import description as host_module
from tilewright.targets.cpu.description import describe_x86, host
from tilewright.targets.cpu.emit import emit
from tilewright.targets.cpu.emit_tiles import TileReader

sys.path.insert(0, str(Path(__file__).parent))
import amx_cases

HERE = Path(__file__).parent
WIDE = (*RULES_AVX512, "avx512vnni", "avx512bf16")
#: a processor with AMX, and the same one without
TILED = describe_x86("x86_64-unknown-linux-gnu", (*WIDE, *amx_cases.AMX), l1_bytes=48 << 10, l2_bytes=2 << 20)
PLAIN = replace(TILED, features=WIDE, cpu="x86-64-v4")


# ---- run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def results(tmp_path_factory, need):
    """What every case of `amx_cases` said, each run in one process of its own."""
    if platform.machine() != "x86_64" or sys.platform != "linux" or "avx512f" not in host().features:
        pytest.skip("kernels with tiles run on x86-64 with AVX-512, under Linux")
    folder = tmp_path_factory.mktemp("amx")
    library = "native"
    if "amx-tile" not in host().features:
        need("cc")
        library = str(folder / "amx_emulator.so")
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-mavx2", "-mfma", "-fPIC", "-shared"]
        subprocess.run(["cc", *flags, str(HERE / "amx_emulator.c"), "-o", library], check=True)
    path = folder / "cases.json"
    command = [sys.executable, str(HERE / "amx_cases.py"), library, str(path)]
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(folder / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    found = json.loads(path.read_text()) if path.exists() else {}
    ended = f"the process ended with {done.returncode} before this case: {done.stderr[-2000:]}"
    return {name: found.get(name, ended) for name in amx_cases.CASES}


@pytest.mark.parametrize("name", amx_cases.CASES)
def test_kernels_compute_what_numpy_does(name, results):
    assert results[name] == "", results[name]


# ---- chosen, interpreted and emitted, anywhere ---------------------------------------------------------------------


def interpreted(kernel, machine, decisions=None):
    """The finished nest, what it computes on random inputs, and these; the rule must be the one for tiles."""
    found = schedule(kernel, machine, decisions)
    assert found.rule == "tile-contraction", found.refused
    nest, rng = finish(found.schedule.nest()), np.random.default_rng(0)
    kinds = {"bf16": lambda s: rng.standard_normal(s).astype(ml_dtypes.bfloat16)}
    kinds |= {"i8": lambda s: rng.integers(-128, 128, s).astype(np.int8)}
    given = {p.name: kinds[p.dtype](p.shape) for p in kernel.inputs}
    packed = {n: pack_array(a, nest.packs[n]) if n in nest.packs else a for n, a in given.items()}
    return nest, interpret_nest(nest, packed)["y"], given


@pytest.mark.parametrize("sizes", [(18, 32, 20), (5, 48, 33), (49, 16, 3)])
@pytest.mark.parametrize("kinds", [("extf", "extf"), ("extui", "extsi"), ("extsi", "extsi")])
def test_the_nest_means_the_same(sizes, kinds):
    m, k, n = sizes
    nest, y, given = interpreted(amx_cases.matmul(m, k, n, *kinds), TILED)
    x, w = given["x"], given["w"]
    x = x.view(np.uint8) if kinds[0] == "extui" else x
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(y - want).max() <= (2e-6 * np.abs(want).max() if kinds[0] == "extf" else 0)
    assert parse_nest(format_nest(nest)) == nest


def test_blocks_fill_the_registers():
    """2 x 2 tiles of sums where there is room; 3 x 1 and 1 x 3 for narrow and for flat results."""
    tiles = lambda m, n: schedule(amx_cases.matmul(m, 64, n), TILED).schedule.decisions["tile"].chosen  # noqa: E731
    assert tiles(128, 256) == (32, 1, 2) and tiles(96, 16) == (48, 1, 1) and tiles(16, 96) == (16, 1, 3)


def test_long_reductions_are_cut():
    """Eight steps of 32 rows and 32 columns fit 48 KiB; four blocks of rows pass over the weights of a piece. All of it
    stays one block where too little would be left to divide among threads."""
    found = schedule(amx_cases.matmul(128, 768, 768), replace(TILED, cores=2))
    loops = {v: found.schedule.extent(v) for v in found.schedule.loops("s0")}
    assert list(loops.values()) == [24, 3, 4, 8, 32, 32, 32]
    assert "prefetch" in str(found.schedule)
    assert "pieces" not in schedule(amx_cases.matmul(128, 768, 32), replace(TILED, cores=8)).schedule.decisions
    uneven = schedule(amx_cases.matmul(101, 768, 768), replace(TILED, cores=2)).schedule
    assert "local(f32[101, 32])" in str(uneven)


def test_the_inner_loop():
    """Four products of four loads, no other memory, and the table of shapes loaded once."""
    nest, _, _ = interpreted(amx_cases.matmul(64, 128, 64), TILED)
    made = emit(nest, TILED)
    assert made.scratch == 32 * 32 * 4
    lines = assembly(mlir_to_llvm(made.text, nest.name), TILED).splitlines()
    names = [line.split()[0] for line in lines if re.match(r"\s+[a-z]", line)]
    assert names.count("ldtilecfg") == names.count("tilerelease") == 1 and names.count("tilezero") == 4
    first = names.index("tileloadd")
    loop = names[first : next(i for i in range(first, len(names)) if names[i].startswith("j"))]
    assert (loop.count("tileloadd"), loop.count("tdpbf16ps")) == (4, 4)
    assert len(loop) <= 20 and not [n for n in loop if n.startswith(("v", "call", "push"))]


@pytest.mark.parametrize("kind", ["ss", "su", "us", "uu"])
def test_signs_decide_the_instruction(kind):
    extend = {"s": "extsi", "u": "extui"}
    found = schedule(amx_cases.matmul(16, 64, 16, extend[kind[0]], extend[kind[1]]), TILED)
    text = emit(finish(found.schedule.nest()), TILED).text
    assert f"llvm.x86.tdpb{kind}d" in text


def test_partial_blocks_have_shapes_of_their_own():
    nest, _, _ = interpreted(amx_cases.matmul(33, 96, 17), TILED, {"tile": (32, 1, 1)})
    shapes = {t.configuration() for t in TileReader(nest).tiles().values()}
    rows = {tuple(s[48:56]) for s in shapes}
    assert rows == {(16, 16, 16, 16, 16, 0, 0, 0), (1, 1, 16, 0, 0, 0, 0, 0)}
    text = emit(nest, TILED).text
    assert text.count("memref.global") == len(shapes) == 4


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "machine", "reason"),
    [
        (amx_cases.matmul(32, 64, 32), PLAIN, "no registers that hold matrices"),
        (amx_cases.matmul(2, 64, 32), TILED, "too few rows"),
        (amx_cases.matmul(32, 34, 32), TILED, "do not divide into long steps"),
        (amx_cases.matmul(32, 64, 32), replace(TILED, features=(*WIDE, "amx-tile", "amx-int8")), "of tiles of bf16"),
    ],
)
def test_the_rule_says_why_not(kernel, machine, reason):
    found = schedule(kernel, machine)
    assert found.rule == "bf16-contraction"
    assert reason in dict(found.refused)["tile-contraction"]


def test_products_of_two_inputs_are_left_to_vectors():
    kernel = amx_cases.matmul(32, 64, 32)
    found = schedule(replace(kernel, constants=()), TILED)
    assert dict(found.refused)["tile-contraction"] == "its weights are not constant"


def test_a_processor_without_tiles_gets_no_such_code():
    nest, _, _ = interpreted(amx_cases.matmul(16, 32, 16), TILED)
    with pytest.raises(CompileError, match=r"the processor has no amx-bf16"):
        emit(nest, PLAIN)
    with pytest.raises(CompileError, match=r"the processor has no amx-bf16"):
        emit(nest, LANES16)


def test_a_note_on_another_loop_is_refused():
    nest, _, _ = interpreted(amx_cases.matmul(16, 32, 16), TILED)
    text = format_nest(nest)
    for old, new, why in (
        ("'amx_bf16'", "'amx_fp8'", "no instruction 'amx_fp8'"),
        ("'amx_bf16'", "'amx_us'", "does not add products of i8"),
        ("mulf(", "addf(", "does not add products of bf16"),
        ("q_i // 2", "q_i // 4", "not laid out in groups of 2"),
    ):
        assert old in text
        with pytest.raises(CompileError, match=why):
            emit(parse_nest(text.replace(old, new)), TILED)


# ---- the machine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ask_again():
    """`host` and `granted` are remembered: forget them before and after."""
    remembered = (host_module.host, amx.granted)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.mark.parametrize("allowed", [True, False])
def test_tiles_are_used_only_if_the_system_grants_them(allowed, monkeypatch, ask_again):
    """A processor with AMX under a system that does and one that does not let this process use its registers."""
    monkeypatch.setattr(host_module, "host_features", lambda: dict.fromkeys((*WIDE, *amx_cases.AMX), True))
    monkeypatch.setattr(amx, "granted", lambda: allowed)
    if host().arch != "x86_64":
        pytest.skip("not an x86-64 processor")
    assert bool(host().tiles) == allowed and ("amx-tile" in host().features) == allowed
    check = next(c for c in examine() if c.name == "tile registers")
    assert check.status == ("ok" if allowed else "note")
    assert ("granted by the system" if allowed else "vectors are used instead") in check.detail


def test_this_machine_is_asked(ask_again):
    """The registers are granted exactly where the processor has them (and the system is no older than they are)."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    assert amx.granted() <= ("amx_tile" in flags)
    assert ("amx-tile" in host().features) == (amx.granted() and bool(host_module.host_features().get("amx-tile")))


def test_without_tiles_no_kernel_multiplies_them():
    """For this machine, unless it has AMX, other rules take the same kernels."""
    if "amx-tile" in host().features:
        pytest.skip("this processor has AMX")
    assert host().tiles == ()
    for kinds in (("extf", "extf"), ("extui", "extsi")):
        found = schedule(amx_cases.matmul(32, 64, 32, *kinds), host())
        assert found.rule != "tile-contraction"
        assert "tile" not in emit(finish(found.schedule.nest()), host()).text


def test_code_with_tiles_is_not_loaded_without_them():
    """Each executable is checked against what this process may use, so nothing runs into an instruction it has not."""
    if "amx-tile" in host().features:
        pytest.skip("this processor has AMX")
    with pytest.raises(PackageError, match=r"lacks CPU features: .*amx-tile"):
        host_module.check_runs_here(replace(host(), features=(*host().features, *amx_cases.AMX)))


def test_te_kernels_may_ask_for_tiles():
    """The note is open to schedules by hand: a text with it is read back and recognized."""
    kernel = te.from_nest(
        """
        def mm(x: bf16[16, 64], w: bf16[64, 16], y: out(f32[16, 16])):
            for i in serial(16):
                for j in serial(16):
                    for q in serial(64):
                        s0: y[i, j] = reduce(addf(y[i, j], mulf(extf[f32](x[i, q]), extf[f32](w[q, j]))), init=f32(0.0), over=(q,))""",  # noqa: E501
        constants=["w"],
    )
    s = tw.Schedule(kernel)
    outer, inner = s.split("q", 32)
    s.reorder(outer, "i", "j", inner)
    s.pack("w", ((2,), (16,)), (2, 0, 3, 1))
    for v in ("i", "j", inner):
        s.unroll(v)
    s.annotate(outer, "tiles", "amx_bf16")
    (tile,) = TileReader(finish(s.nest())).tiles().values()
    assert tile.depth == 32 and [n for _, n in tile.rows] == [16] and tile.columns == ((0, 16),)
