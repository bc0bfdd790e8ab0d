"""Level 5 to level 6: a kernel in MLIR (scf, vector, memref, arith, math ...) to LLVM IR to an object file.

A kernel is ``func.func @sym(%a: memref<NxT>, ..., %scratch: memref<Sxi8>, %tid: index, %nt: index)`` with static
one-dimensional memrefs, and becomes the C function ``void sym(T *a, ..., void *scratch, int64_t tid, int64_t nt)``.

MLIR and LLVM can abort the process on bad input; `pool` calls these functions in worker processes.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...support.canonical import CANONICALIZE
from ...support.discovery import installed_version
from ...support.errors import CompileError
from ...support.forks import wait_for
from .llvm_text import to_llvm22
from .machine import LlvmMachine

if TYPE_CHECKING:
    import llvmlite.binding as llvm
    from torch_mlir import ir

#: bytes to which the calling conventions align a stack
STACK = 16
STAGE = "assemble"

#: MLIR's own lowerings. `convert-math-to-llvm` comes before libm so that fma, sqrt, floor ... become instructions;
#: calls of libm take vectors apart (f64), so vectors come after it.
PIPELINE = (
    *(CANONICALIZE, "loop-invariant-code-motion", "cse", "convert-vector-to-scf", "lower-affine"),
    *("convert-scf-to-cf", "memref-expand"),
    *("expand-strided-metadata", "lower-affine", "convert-math-to-llvm{approximate-log1p=0}", "convert-math-to-libm"),
    *("convert-vector-to-llvm", "arith-expand", "convert-arith-to-llvm", "finalize-memref-to-llvm"),
    *("convert-index-to-llvm", "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1}", "convert-cf-to-llvm"),
    *("convert-ub-to-llvm", "reconcile-unrealized-casts"),
)
#: the same code in fewer passes (a third less time), for modules without what `_RARE` finds
SHORT_PIPELINE = (
    *(CANONICALIZE, "loop-invariant-code-motion", "cse", "convert-scf-to-cf", "convert-vector-to-llvm"),
    *("convert-func-to-llvm{use-bare-ptr-memref-call-conv=1}", "convert-to-llvm{allow-pattern-rollback=0}"),
    "reconcile-unrealized-casts",
)
#: operations that only the long pipeline lowers, or that it lowers in another way
_RARE = tuple(
    re.compile(name)
    for name in (
        *(r"affine\.", r"vector\.transfer_", r"index\.", r"arith\.ceildiv", r"arith\.scaling_"),
        r"memref\.(?!(?:load|store|view|prefetch|alloca|extract_aligned_pointer_as_index)\b)",
        r"math\.(?!(?:fma|sqrt|absf|copysign|floor|ceil|trunc|roundeven)\b)",
    )
)
#: those that are told how many bits an index has
_WITH_INDICES = (
    *("convert-arith-to-llvm", "finalize-memref-to-llvm", "convert-index-to-llvm", "convert-func-to-llvm"),
    "convert-cf-to-llvm",
)

#: the attribute of a function in which steps of a loop update one element of memory: LLVM's loop passes keep it in a
#: register
IN_MEMORY = "tw-accumulates-in-memory"
#: what a kernel has that does more than copy: the loops of copies are better as LLVM's own
_COMPUTES = re.compile(r"= (?:f(?:add|sub|mul|div|neg)|call) ")
#: characters of a kernel whose loops are long
_LONG = 40_000
#: kernels that one MLIR context lowers: it keeps every type, constant and location that it has seen
_KERNELS = 32

_initialized: set[str] = set()
_lowerings = threading.local()
_lock = threading.Lock()
wait_for(_lock)


# ---- MLIR to LLVM IR ----


def pipeline(index_bits: int) -> str:
    """The passes for a machine whose indices have that many bits."""
    if index_bits == 64:
        return ",".join(PIPELINE)
    passes = []
    for text in PIPELINE:
        name, _, options = text.rstrip("}").partition("{")
        passes.append(f"{name}{{{options} index-bitwidth={index_bits}}}" if name in _WITH_INDICES else text)
    return ",".join(passes)


class _Lowering:
    """A context and the passes that run in it: making them takes as long as lowering a small kernel."""

    def __init__(self) -> None:
        from torch_mlir import ir

        self.kernels = 0
        self.context = ir.Context()
        self.context.enable_multithreading(False)
        self.passes: dict[str, Any] = {}

    def lower(self, text: str, index_bits: int) -> tuple[Any, list[str]]:
        """The module of a text in LLVM's dialect, with the operations that are not. What the short pipeline leaves, the
        long one is tried on."""
        from torch_mlir import ir

        if index_bits == 64 and not any(rare.search(text) for rare in _RARE):
            with suppress(ir.MLIRError):
                module = ir.Module.parse(text)
                self.run(module, ",".join(SHORT_PIPELINE))
                if not (left := _not_lowered(module)):
                    return module, left
        module = ir.Module.parse(text)
        self.run(module, pipeline(index_bits))
        return module, _not_lowered(module)

    def run(self, module: ir.Module, pipeline: str) -> None:
        """Run passes on a module of this context, which nobody verifies but LLVM in the end: it took longer than the
        passes (measured)."""
        from torch_mlir import passmanager

        if pipeline not in self.passes:
            self.passes[pipeline] = passmanager.PassManager.parse(f"builtin.module({pipeline})")
            self.passes[pipeline].enable_verifier(False)
        self.passes[pipeline].run(module.operation)

    @staticmethod
    def of_this_thread() -> _Lowering:
        found: _Lowering | None = getattr(_lowerings, "lowering", None)
        if found is None or found.kernels >= _KERNELS:
            found = _lowerings.lowering = _Lowering()
        found.kernels += 1
        return found


def prepare() -> None:
    """What the first kernel of a process would do first, for this machine's processor."""
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _mlirDialectsLLVM  # noqa: F401

    lowering = _Lowering.of_this_thread()
    with lowering.context, ir.Location.unknown():
        lowering.lower("module {}", 64)
    initialize_llvm("")


def mlir_to_llvm(module_text: str, symbol: str, index_bits: int = 64, vector_bytes: int = 0) -> str:
    """LLVM IR text (LLVM 24 spelling) of a level-5 module whose kernel is `symbol`.

    Only `symbol` stays visible outside the object. Vectors of more than 16 bytes, `vector_bytes` at most, lie aligned
    on its stack. CompileError if the text does not parse, a pass fails, an operation
    has no lowering, or the module has no function `symbol`.
    """
    from torch_mlir import ir
    from torch_mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir

    vectors = index_bits == 32 and "vector<" in module_text
    if vectors and re.search(r"\b[if]64\b", module_text):
        raise CompileError(
            f"kernel @{symbol} has vectors and 64-bit numbers, which 32-bit machines cannot combine", stage=STAGE
        )
    lowering = _Lowering.of_this_thread()
    with lowering.context as context, ir.Location.unknown():
        try:
            module, left = lowering.lower(module_text, 64 if vectors else index_bits)
        except ir.MLIRError as e:
            words = "; ".join(f"{d.location}: {d.message}" for d in e.error_diagnostics) or str(e)
            raise CompileError(f"kernel @{symbol} does not lower: {words}", stage=STAGE) from None
        if left:
            more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
            raise CompileError(
                f"kernel @{symbol} has an operation that does not lower to LLVM: {left[0]}{more}",
                stage=STAGE,
                hint="the emitter must use operations that the pipeline in codegen/llvm/assemble.py lowers",
            )
        _set_attributes(module, symbol, vector_bytes, IN_MEMORY in module_text)
        with _diagnostics(context) as messages:
            text = translate_module_to_llvmir(module.operation)
        if not text:
            raise CompileError(f"kernel @{symbol} does not translate: {'; '.join(messages)}", stage=STAGE)
        return narrow(text) if vectors else text


def narrow(text: str) -> str:
    """LLVM IR whose 64-bit integers are all indices, with 32-bit ones: MLIR's lowering of vectors knows indices of 64
    bits only.

    >>> narrow("  %2 = sext i32 %1 to i64")
    '  %2 = bitcast i32 %1 to i32'
    """
    text = re.sub(r"\bi64\b", "i32", text)
    return re.sub(
        r"= (?:sext|zext|zext nneg|trunc|trunc nuw|trunc nsw) i32 (\S+) to i32\b", r"= bitcast i32 \1 to i32", text
    )


def _not_lowered(module: ir.Module) -> list[str]:
    """The operations outside the llvm dialect: the translation crashes on them. What LLVM is told about a loop, the
    lowering leaves under a name that the translation does not read: give it the other one."""
    from torch_mlir import ir

    left: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name == "llvm.br":
            if "llvm.loop_annotation" in op.attributes:
                op.attributes["loop_annotation"] = op.attributes["llvm.loop_annotation"]
                del op.attributes["llvm.loop_annotation"]
        elif not name.startswith("llvm.") and name != "builtin.module":
            left.append(f"{name} at {op.location}")
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return left


def _set_attributes(module: ir.Module, symbol: str, vector_bytes: int, in_memory: bool) -> None:
    """Hide helpers (two kernels may have helpers of one name), and say that nothing here unwinds.

    Threads' stacks begin anywhere that is a multiple of 16. LLVM aligns registers that it keeps there no better of its
    own accord, and kernels that keep vectors there took up to 1.4 times as long on some threads (measured)."""
    from torch_mlir import ir

    aligned = f', ["alignstack", "{vector_bytes}"]' if vector_bytes > STACK else ""
    told = f', "{IN_MEMORY}"' if in_memory else ""  # the lowering of functions leaves it out
    attributes = ir.Attribute.parse(f'["nounwind"{aligned}{told}]')
    found = False

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal found
        if op.name != "llvm.func":
            return ir.WalkResult.ADVANCE
        if len(op.regions[0].blocks):
            op.attributes["passthrough"] = attributes
            if ir.StringAttr(op.attributes["sym_name"]).value == symbol:
                found = True
            else:
                op.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        return ir.WalkResult.SKIP

    # For `module.body.operations`, or an attribute of it, the bindings import the dialect: that of LLVM takes 0.1 s.
    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    if not found:
        raise CompileError(f"the module has no function @{symbol}", stage=STAGE)


@contextmanager
def _diagnostics(context: ir.Context) -> Iterator[list[str]]:
    """Collect MLIR's messages, which would go to stderr otherwise."""
    messages: list[str] = []

    def take(diagnostic: ir.Diagnostic) -> bool:
        messages.append(f"{diagnostic.location}: {diagnostic.message}")
        return True

    handler = context.attach_diagnostic_handler(take)
    try:
        yield messages
    finally:
        handler.detach()


# ---- LLVM IR to objects ----


def initialize_llvm(triple: str) -> None:
    """Make llvmlite ready for this machine's processor, and for all others if there is a triple of another one."""
    with _lock:
        from llvmlite import binding as llvm

        if "native" not in _initialized:
            wait_for(llvm.ffi.lib._lock._lock)  # every call of llvmlite takes it, and changes LLVM's own state
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _initialized.add("native")
        native = llvm.get_default_triple().split("-")[0]
        if triple and triple.split("-")[0] != native and "all" not in _initialized:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _initialized.add("all")


def target_machine(machine: LlvmMachine) -> llvm.TargetMachine:
    """LLVM's own object for a machine."""
    from llvmlite import binding as llvm

    initialize_llvm(machine.triple)
    try:
        target = llvm.Target.from_triple(machine.triple)
    except RuntimeError as e:
        raise CompileError(f"LLVM does not know the triple {machine.triple!r}: {e}", stage=STAGE) from None
    return target.create_target_machine(
        cpu=machine.cpu,
        features=machine.llvm_features(),
        opt=2,
        reloc=machine.reloc,
        codemodel="small",
        abiname=machine.abi,
    )


def assemble(llvm_ir_text: str, machine: LlvmMachine) -> bytes:
    """The object file of a module of LLVM IR; CompileError if the text is not valid."""
    maker = target_machine(machine)
    module = _optimized(llvm_ir_text, machine, maker)
    with _code_generation(llvm_ir_text, machine):
        return maker.emit_object(module)


def assembly(llvm_ir_text: str, machine: LlvmMachine) -> str:
    """The same as assembler text, to look at. The text is parsed anew: a module must not be emitted in two forms."""
    maker = target_machine(machine)
    module = _optimized(llvm_ir_text, machine, maker)
    with _code_generation(llvm_ir_text, machine):
        return maker.emit_assembly(module)


def optimized_llvm(llvm_ir_text: str, machine: LlvmMachine) -> str:
    """The LLVM IR after optimization, to look at."""
    return str(_optimized(llvm_ir_text, machine, target_machine(machine)))


@contextmanager
def _code_generation(llvm_ir_text: str, machine: LlvmMachine) -> Iterator[None]:
    """Inside: without strength reduction of addresses in loops, for long kernels where instructions add and scale
    them. It takes a third of the time there, as it is quadratic in the accesses of a loop, and the code is as
    fast. That is an option of all of LLVM: no other call of llvmlite runs meanwhile."""
    from llvmlite import binding as llvm

    if len(llvm_ir_text) < _LONG or not machine.few_passes:
        yield
        return
    with llvm.ffi.lib._lock:
        llvm.set_option("", "-disable-lsr=true")
        try:
            yield
        finally:
            llvm.set_option("", "-disable-lsr=false")


def _optimized(text: str, machine: LlvmMachine, maker: llvm.TargetMachine) -> llvm.ModuleRef:
    from llvmlite import binding as llvm

    text = machine.define(text)
    try:
        module = llvm.parse_assembly(to_llvm22(text), context=llvm.create_context())
        module.triple = machine.triple
        module.data_layout = str(maker.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM does not accept the kernel: {str(e).strip()}", stage=STAGE) from None
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # Hot loops are vectorized and unrolled explicitly, above: LLVM's own attempts cost time and grow the code.
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(maker, options)
    if "alwaysinline" in text:
        inline = llvm.create_new_module_pass_manager()
        inline.add_always_inliner_pass()
        inline.run(module, builder)
    functions = [f for f in module.functions if not f.is_declaration]
    if len(functions) != 1 or "llvm.loop.unroll.count" in text:  # a program, or unrolling is wanted
        builder.getModulePassManager().run(module, builder)
    elif not machine.few_passes or IN_MEMORY in text or not _COMPUTES.search(text):
        builder.getFunctionPassManager().run(functions[0], builder)
    else:
        passes = llvm.create_new_function_pass_manager()
        passes.add_loop_rotate_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(functions[0], builder)
    return module


@lru_cache(maxsize=8)
def toolchain(sources: tuple[Path, ...] = ()) -> str:
    """The versions of all that turns MLIR text into an object, for cache keys; our part is known by its source, with
    that of a machine (`LlvmMachine.sources`)."""
    ours = hashlib.sha256(pipeline(64).encode())
    for path in (Path(__file__), Path(__file__).with_name("llvm_text.py"), *sources):
        ours.update(path.read_bytes())
    versions = (f"{name} {installed_version(name)}" for name in ("torch-mlir", "llvmlite"))
    return f"{', '.join(versions)}, {ours.hexdigest()[:16]}"
