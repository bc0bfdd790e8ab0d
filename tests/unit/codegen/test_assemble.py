"""Kernels from MLIR to objects: literals bit for bit, what lowers, what is refused."""

import re

import numpy as np
import pytest

from tilewright.codegen.llvm.assemble import (
    _LONG,
    IN_MEMORY,
    SHORT_PIPELINE,
    _code_generation,
    _Lowering,
    assemble,
    assembly,
    mlir_to_llvm,
    optimized_llvm,
    pipeline,
)
from tilewright.codegen.llvm.builtins import builtins_llvm
from tilewright.codegen.llvm.llvm_text import to_llvm22
from tilewright.program.program import BufferRef, Call, Program, TensorInfo
from tilewright.runtime.executable import Executable
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.description import X86_FEATURES, CpuDescription, describe_x86, host
from tilewright.targets.cpu.emit import emit

ARM = CpuDescription("aarch64-unknown-linux-gnu", "generic", ("neon",), vector_bytes=16, vector_registers=32)


def run_kernel(make_package, text, result, *, inputs=()):
    """Compile ``@k(inputs..., result, scratch, tid, nt)`` and run it once."""
    infos = [TensorInfo(f"x{i}", (a.size,), d) for i, (a, d) in enumerate(inputs)]
    refs = [BufferRef("input", i, 0, t.nbytes) for i, t in enumerate(infos)]
    call = Call("k", (*refs, BufferRef("output", 0, 0, result.nbytes)), (len(refs),), parallel=False)
    program = Program(tuple(infos), (result,), (), (call,), scratch_size=64)
    package = make_package(program, {"k": assemble(mlir_to_llvm(text, "k"), host())})
    return Executable(package, 1)(*(a for a, _ in inputs))[0]


# ---- literals ----


@pytest.mark.parametrize(("dtype", "width"), [("f16", 16), ("bf16", 16), ("f32", 32), ("f64", 64)])
def test_constants_come_out_bit_for_bit(dtype, width, make_package):
    """Random patterns, and the edges: zeros, subnormals, the largest, infinities, NaNs quiet and signalling."""
    unsigned = np.dtype(f"u{width // 8}")
    mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[dtype]
    top = ((1 << width - 1) - 1) >> mantissa << mantissa
    edges = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, top - 1, top, top + 1, top | 1 << mantissa - 1, top + 5]
    edges += [e | 1 << width - 1 for e in edges]
    random = (
        np.random.default_rng(width).integers(0, 1 << width, 150, np.uint64, endpoint=False)
        if width < 64
        else (np.random.default_rng(width).integers(0, np.iinfo(np.uint64).max, 150, np.uint64))
    )
    short = np.array([0.1, 0.5, 1 / 3, 3.0, 1e-3, -2.5, 1e4])
    short_bits = short.astype(TensorInfo("", (), dtype).numpy_dtype).view(unsigned)
    bits = np.array([*edges, *random.tolist(), *short_bits.tolist()], np.uint64).astype(unsigned)
    lines = [f"func.func @k(%y: memref<{bits.size}x{dtype}>, %s: memref<1xi8>, %t: index, %n: index) {{"]
    for i, b in enumerate(bits.tolist()):
        lines.append(f"%i{i} = arith.constant {i} : index\n%v{i} = arith.constant 0x{b:0{width // 4}X} : {dtype}")
        lines.append(f"memref.store %v{i}, %y[%i{i}] : memref<{bits.size}x{dtype}>")
    got = run_kernel(make_package, "\n".join([*lines, "return\n}"]), TensorInfo("y", (bits.size,), dtype))
    assert np.array_equal(got.view(unsigned), bits)


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("ret float 1.000000e-01", "ret float 0x3FB99999A0000000"),
        ("ret double 1.000000e-01", "ret double 0x3FB999999999999A"),
        (
            "%1 = fadd <4 x float> %0, splat (float -0.000000e+00)",
            "%1 = fadd <4 x float> %0, splat (float 0x8000000000000000)",
        ),
        ("%2 = fcmp ugt float %1, +inf", "%2 = fcmp ugt float %1, 0x7FF0000000000000"),
        ("ret float -qnan", "ret float 0xFFF8000000000000"),
        ("ret double snan(0x1)", "ret double 0x7FF0000000000001"),
        ("ret half f0x3C00", "ret half 0xH3C00"),
        ("store bfloat 1.000980e-01, ptr %1", "store bfloat 0xR3DCD, ptr %1"),
        ("%3 = phi float [ 1.5, %a ], [ %x, %b ]", "%3 = phi float [ 0x3FF8000000000000, %a ], [ %x, %b ]"),
        (
            "{ float, double } { float 0.5, double 0.5 }",
            "{ float, double } { float 0x3FE0000000000000, double 0x3FE0000000000000 }",
        ),
        ('!"float 1.5 ", i32 7', '!"float 1.5 ", i32 7'),
        ("; float 1.5", "; float 1.5"),
        ("%float.1 = add i32 %half, 5", "%float.1 = add i32 %half, 5"),
    ],
)
def test_spelling_of_literals(newer, older):
    assert to_llvm22(newer) == older


def test_a_literal_far_from_its_type_and_one_without():
    long = ", ".join(["i32 7"] * 200)
    assert "0x3FF8000000000000" in to_llvm22(f"call void @f(float {' ' * 30}, {long}, 1.5)")
    with pytest.raises(CompileError, match="floating literal without a type"):
        to_llvm22("ret 1.5, float 2.5")
    with pytest.raises(CompileError, match="fp128 are not supported"):
        to_llvm22("ret fp128 1.5")


# ---- lowering ----

EVERYTHING = """
func.func private @helper(%x: f32) -> f32 {
  %y = math.erf %x : f32
  return %y : f32
}
memref.global "private" constant @table : memref<4xf32> = dense<[1.0, 2.5, 0x7FC00000, 0xFF800000]>
func.func @k(%a: memref<64xf32> {llvm.noalias, llvm.align = 64 : i64, llvm.readonly},
             %b: memref<64xf32> {llvm.noalias}, %scratch: memref<4096xi8> {llvm.noalias}, %tid: index, %nt: index) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %n = arith.constant 64 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %neutral = arith.constant 0xFF800000 : f32
  scf.for %i = %c0 to %n step %c16 {
    %left = arith.subi %n, %i : index
    %mask = vector.create_mask %left : vector<16xi1>
    %v = vector.maskedload %a[%i], %mask, %zero : memref<64xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
    %step = vector.step : vector<16xindex>
    %lanes = arith.index_cast %step : vector<16xindex> to vector<16xi32>
    %g = vector.gather %a[%i] [%lanes], %mask, %zero
      : memref<64xf32>, vector<16xi32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
    %m = arith.maximumf %v, %g : vector<16xf32>
    %f = vector.fma %m, %v, %g : vector<16xf32>
    %e = math.exp %f : vector<16xf32>
    %r = math.roundeven %e : vector<16xf32>
    %s = vector.reduction <maximumf>, %r, %neutral : vector<16xf32> into f32
    %view = memref.view %scratch[%c0][] : memref<4096xi8> to memref<1024xf32>
    memref.store %s, %view[%i] : memref<1024xf32>
    %t = memref.get_global @table : memref<4xf32>
    %u = memref.load %t[%c0] : memref<4xf32>
    %w = func.call @helper(%u) : (f32) -> f32
    %x = vector.broadcast %w : f32 to vector<16xf32>
    %bits = arith.bitcast %x : vector<16xf32> to vector<16xi32>
    %wide = arith.extsi %bits : vector<16xi32> to vector<16xi64>
    %back = arith.sitofp %wide : vector<16xi64> to vector<16xf32>
    memref.prefetch %a[%i], read, locality<3>, data : memref<64xf32>
    vector.maskedstore %b[%i], %mask, %back : memref<64xf32>, vector<16xi1>, vector<16xf32>
    %p = ub.poison : vector<16xf32>
    %pair = vector.shuffle %back, %p [0, 16, 1, 17] : vector<16xf32>, vector<16xf32>
    vector.store %pair, %view[%c16] : memref<1024xf32>, vector<4xf32>
  }
  return
}
"""


@pytest.mark.parametrize(
    "description",
    [
        host(),
        ARM,
        describe_x86("x86_64-unknown-linux-gnu", X86_FEATURES[:16]),
        describe_x86("x86_64-pc-windows-msvc", ()),
    ],
    ids=["host", "arm", "avx2", "windows-sse2"],
)
def test_the_operations_kernels_use_lower(description):
    llvm_ir = mlir_to_llvm(EVERYTHING, "k")
    data = assemble(llvm_ir, description)
    assert len(data) > 500
    assert data == assemble(llvm_ir, description)
    assert "k" in assembly(llvm_ir, description)


def test_the_signature_is_bare_pointers_and_keeps_attributes():
    text = mlir_to_llvm(EVERYTHING, "k")
    head = next(line for line in text.splitlines() if line.startswith("define void @k("))
    assert head.count("ptr") == 3 and head.count("i64 %") == 2
    assert "noalias" in head and "align 64" in head
    assert "define internal float @helper" in text  # other objects may have a helper of that name


def test_the_short_pipeline_gives_the_same_code(monkeypatch):
    """But for what it leaves, and the logarithm that it would approximate: these go the long way."""
    usual = EVERYTHING.replace("math.erf", "math.absf").replace("math.exp %f", "math.sqrt %f")
    usual = re.sub(r"memref.global.*|%t = memref.get_global.*", "", usual).replace("%t[%c0]", "%view[%c0]")
    usual = usual.replace("memref.load %view[%c0] : memref<4xf32>", "memref.load %view[%c0] : memref<1024xf32>")
    ran: list[str] = []
    run = _Lowering.run
    monkeypatch.setattr(_Lowering, "run", lambda self, module, passes: (ran.append(passes), run(self, module, passes)))
    short = mlir_to_llvm(usual, "k")
    assert ran == [",".join(SHORT_PIPELINE)]
    for rare in (EVERYTHING, usual.replace("math.sqrt %f", "math.log1p %f")):
        mlir_to_llvm(rare, "k")
    assert ran[1:] == [pipeline(64)] * 2
    monkeypatch.setattr("tilewright.codegen.llvm.assemble._RARE", (re.compile(""),))
    assert mlir_to_llvm(usual, "k") == short and ran[3:] == [pipeline(64)]


def loop_over(count):
    """A kernel whose loop reads that many places."""
    lines = ["func.func @k(%a: memref<99999xf32>, %s: memref<1xi8>, %t: index, %n: index) {"]
    lines += ["%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\nscf.for %i = %c0 to %n step %c1 {"]
    for i in range(count):
        lines += [f"%c{i}x = arith.constant {7 * i + 3} : index\n%p{i} = arith.muli %i, %c{i}x : index"]
        lines += [f"%v{i} = memref.load %a[%p{i}] : memref<99999xf32>\n%w{i} = arith.addf %v{i}, %v{i} : f32"]
        lines += [f"memref.store %w{i}, %a[%p{i}] : memref<99999xf32>"]
    return mlir_to_llvm("\n".join([*lines, "}\nreturn\n}"]), "k")


def test_options_of_llvm_are_as_they_were_after_a_long_kernel():
    """Long ones of x86 are made without strength reduction; nothing of that is left for others."""
    x86 = describe_x86("x86_64-unknown-linux-gnu", X86_FEATURES)
    short, long = loop_over(8), loop_over(400)
    assert len(short) < _LONG < len(long)
    before = assemble(short, x86), assemble(short, ARM)
    made = assemble(long, x86)
    assert (assemble(short, x86), assemble(short, ARM)) == before
    assert assemble(long, x86) == made
    with _code_generation(long, x86):
        assert assemble(short, x86) != before[0]


@pytest.mark.parametrize("size", [1, 2])
def test_a_sum_in_memory_is_kept_in_a_register(size):
    """By passes that most kernels do without: the emitter says which one needs them."""
    nest = parse_nest(f"""def k(p0: f32[785, 19], p1: out(f32[19])):
  with local(f32[2]) as t:
    for a in serial({size}):
      t[a] = f32(0.0)
      for i in serial(785):
        t[a] = addf(p0[i, a], t[a])
    for a in serial({size}):
      p1[a] = t[a]""")
    made = mlir_to_llvm(emit(nest, host()).text, "k")
    assert IN_MEMORY in made
    lines = optimized_llvm(made, host()).splitlines()
    loop = next(i for i, line in enumerate(lines) if " fadd " in line)
    store = next(i for i, line in enumerate(lines) if " store " in line)
    assert any(" br " in line for line in lines[loop:store])
    other = parse_nest("def k(p0: f32[9], p1: out(f32[9])):\n  for i in serial(9):\n    p1[i] = addf(p0[i], p0[i])")
    assert IN_MEMORY not in mlir_to_llvm(emit(other, host()).text, "k")


def test_helpers_are_inlined():
    helper = "define internal float @h(float %x) alwaysinline {\n  %y = fadd float %x, %x\n  ret float %y\n}\n"
    caller = "define float @k(float %x) {\n  %y = call float @h(float %x)\n  ret float %y\n}\n"
    made = optimized_llvm(helper + caller, host())
    assert "call" not in made and "@h" not in made


@pytest.mark.skipif(host().arch != "x86_64" or host().vector_bytes != 64, reason="needs AVX-512")
def test_wide_vectors_stay_wide():
    text = """func.func @k(%a: memref<16xf32>, %s: memref<1xi8>, %t: index, %n: index) {
      %c0 = arith.constant 0 : index
      %v = vector.load %a[%c0] : memref<16xf32>, vector<16xf32>
      %w = arith.addf %v, %v : vector<16xf32>
      vector.store %w, %a[%c0] : memref<16xf32>, vector<16xf32>
      return
    }"""
    assert "zmm" in assembly(mlir_to_llvm(text, "k"), host())
    assert "fadd <16 x float>" in optimized_llvm(mlir_to_llvm(text, "k"), host())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @k() { return", "kernel @k does not lower: .*expected operation name"),
        ('func.func @k() { "no.such"() : () -> ()\n return }', "kernel @k does not lower: .*unregistered dialect"),
        ("func.func @k(%a: tensor<4xf32>) { return }", "does not lower to LLVM: func.func at loc"),
        ("func.func @j() { return }", "the module has no function @k"),
        ("func.func private @k()", "the module has no function @k"),
        (
            "func.func @k(%a: memref<4xf32>) { %t = bufferization.to_tensor %a : memref<4xf32> to tensor<4xf32>\n"
            "%c = arith.constant 0 : index\n %x = tensor.extract %t[%c] : tensor<4xf32>\n"
            "memref.store %x, %a[%c] : memref<4xf32>\n return }",
            r"does not lower to LLVM: \S+ at loc",
        ),
    ],
)
def test_what_does_not_lower_is_named(text, message):
    with pytest.raises(CompileError, match=message):
        mlir_to_llvm(text, "k")


def test_bad_llvm_text_and_triple_are_refused():
    with pytest.raises(CompileError, match="LLVM does not accept the kernel"):
        assemble("define void @k() { ret i32 0 }", host())
    with pytest.raises(CompileError, match="does not know the triple 'foo-bar-baz'"):
        assemble("", CpuDescription("foo-bar-baz", "", ()))


# ---- support functions ----


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_narrowing_without_instructions(source, target, make_package):
    """The support functions against NumPy: every 16-bit value, ties between neighbours and what lies beside them."""
    name = f"__trunc{source[0].replace('f', 's') if source == 'f32' else 'd'}f{'h' if target == 'f16' else 'b'}f2"
    kinds = {"f32": "float", "f64": "double", "f16": "half", "bf16": "bfloat"}
    wide, narrow = (TensorInfo("", (), d).numpy_dtype for d in (source, target))
    values = np.arange(1 << 16, dtype=np.uint16).view(narrow)
    with np.errstate(invalid="ignore"):
        values = np.unique(values.astype(np.float64)[np.isfinite(values.astype(np.float32))])
    ties = ((values[1:] + values[:-1]) / 2).astype(wide)
    x = np.concatenate([values.astype(wide), ties, np.nextafter(ties, wide.type(np.inf))])
    x = np.concatenate([x, np.nextafter(ties, wide.type(-np.inf)), np.array([np.inf, -np.inf, np.nan, -0.0], wide)])
    with np.errstate(over="ignore"):
        expected = np.concatenate([values.astype(wide), round_ties(ties, values, narrow), values[1:], values[:-1]])
    llvm_ir = f"""{builtins_llvm()}
define void @k(ptr %x, ptr %y, ptr %s, i64 %t, i64 %n) {{
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %j, %loop ]
  %p = getelementptr {kinds[source]}, ptr %x, i64 %i
  %q = getelementptr i16, ptr %y, i64 %i
  %v = load {kinds[source]}, ptr %p, align 1
  %w = call {kinds[target]} @{name}({kinds[source]} %v)
  store {kinds[target]} %w, ptr %q, align 1
  %j = add i64 %i, 1
  %end = icmp eq i64 %j, {x.size}
  br i1 %end, label %done, label %loop
done:
  ret void
}}"""
    infos = TensorInfo("x", x.shape, source), TensorInfo("y", x.shape, target)
    call = Call("k", (BufferRef("input", 0, 0, x.nbytes), BufferRef("output", 0, 0, 2 * x.size)), (1,), parallel=False)
    program = Program((infos[0],), (infos[1],), (), (call,))
    package = make_package(program, {"k": assemble(llvm_ir, host())})
    package.objects.pop("tw.builtins", None)  # the kernel has them already
    got = Executable(package, 1)(x)[0]
    assert np.array_equal(got[:-4].astype(np.float64), expected.astype(np.float64))
    tail = got[-4:].astype(np.float64)
    assert tail[0] == np.inf and tail[1] == -np.inf and np.isnan(tail[2]) and tail[3] == 0 and np.signbit(tail[3])


def round_ties(ties, values, narrow):
    """Of the two neighbours of each tie, the one with an even last bit."""
    low, high = values[:-1].astype(narrow), values[1:].astype(narrow)
    even = low.view(np.uint16) & 1 == 0
    return np.where(even, low.astype(np.float64), high.astype(np.float64))
