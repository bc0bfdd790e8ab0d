"""`codegen/llvm` for machines that no target describes: it needs a record of the machine, and no target."""

import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.codegen.llvm import machine as module
from tilewright.codegen.llvm.assemble import assemble, assembly, mlir_to_llvm
from tilewright.codegen.llvm.cache import KernelCache
from tilewright.codegen.llvm.machine import LlvmMachine, LlvmRecord, from_message, to_message
from tilewright.codegen.llvm.pool import Job, compile_many
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.description import host

ARM = LlvmRecord("aarch64-unknown-linux-gnu", "cortex-a76", ("neon", "dotprod"))
RISCV = LlvmRecord("riscv64-unknown-linux-gnu", "generic-rv64", ("m", "a", "f", "d"), abi="lp64d")
SMALL = LlvmRecord("thumbv7em-none-eabihf", "cortex-m4", reloc="static", index_bits=32, vector_bytes=4)
#: the number of a machine in an ELF file
ELF = {ARM: 183, RISCV: 243, SMALL: 40}


@dataclass(frozen=True)
class Board(LlvmRecord):
    """A machine with a function of its own."""

    def define(self, llvm_ir: str) -> str:
        assert "declare i32 @board_twice(i32)" in llvm_ir
        own = "define internal i32 @board_twice(i32 %x) alwaysinline {\n %y = shl i32 %x, 1\n ret i32 %y\n}\n"
        return llvm_ir.replace("declare i32 @board_twice(i32)", own)

    def sources(self):
        return (Path(__file__),)


@pytest.mark.parametrize("machine", ELF, ids=lambda m: m.triple.split("-")[0])
def test_objects_of_other_machines(machine, kernel):
    data = assemble(mlir_to_llvm(kernel("k", "addf"), "k", machine.index_bits, machine.vector_bytes), machine)
    assert data[:4] == b"\x7fELF" and struct.unpack_from("<H", data, 18) == (ELF[machine],)


def test_texts_of_gpus(kernel):
    """Machines whose code is text, or that the wheel can write although nothing here runs it."""
    llvm = mlir_to_llvm(kernel("k", "addf"), "k")
    assert ".func k" in assembly(llvm, LlvmRecord("nvptx64-nvidia-cuda", "sm_90", reloc="static"))
    assert "v_add_f32" in assembly(llvm, LlvmRecord("amdgcn-amd-amdhsa", "gfx90a"))


def test_no_target_is_asked(kernel, tmp_path):
    """In a process of its own, nothing under `targets/` is even imported; workers, cache and all."""
    code = f"""
import sys
from tilewright.codegen.llvm.cache import KernelCache
from tilewright.codegen.llvm.machine import LlvmRecord
from tilewright.codegen.llvm.memo import KernelMemo
from tilewright.codegen.llvm.pool import Job, compile_many
machine, cache = {RISCV!r}, KernelCache({str(tmp_path)!r})
first, again = (compile_many([Job("k", {kernel("k", "addf")!r})], machine, cache=cache) for _ in range(2))
assert again[0].cached and first[0].data == again[0].data and first[0].data[18] == 243
assert KernelMemo(machine, "some:maker", cache).recall("text") is None
print([m for m in sys.modules if m.startswith("tilewright.targets")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


def test_workers_make_a_machine_anew(monkeypatch, kernel, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    for machine in (ARM, host()):
        assert from_message(to_message(machine)) == machine
    there = compile_many([Job("k", kernel("k", "addf"))], ARM)[0].data
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    assert compile_many([Job("k", kernel("k", "addf"))], ARM)[0].data == there


def test_a_machines_own_functions():
    text = """
    func.func private @board_twice(i32) -> i32
    func.func @k(%a: memref<4xi32>, %s: memref<1xi8>, %t: index, %n: index) {
      %c0 = arith.constant 0 : index
      %x = memref.load %a[%c0] : memref<4xi32>
      %y = func.call @board_twice(%x) : (i32) -> i32
      memref.store %y, %a[%c0] : memref<4xi32>
      return
    }
    """
    board: LlvmMachine = Board(RISCV.triple, RISCV.cpu, RISCV.features, RISCV.abi)
    made = assembly(mlir_to_llvm(text, "k"), board)
    assert "slli" in made and "board_twice" not in made


def test_keys_of_kernels():
    """All of the machine is in them, and the source of its own functions."""
    board = Board(RISCV.triple, RISCV.cpu, RISCV.features, RISCV.abi)
    keys = {KernelCache.key("text", m) for m in (ARM, RISCV, SMALL, board, LlvmRecord(ARM.triple, ARM.cpu), host())}
    assert len(keys) == 6
    assert module.code_key(RISCV) == "riscv64-unknown-linux-gnu|generic-rv64|+m,+a,+f,+d|64|lp64d|pic"


def test_a_triple_that_llvm_does_not_know(kernel):
    with pytest.raises(CompileError, match="LLVM does not know the triple 'abacus-unknown-none'"):
        assemble(mlir_to_llvm(kernel("k", "addf"), "k"), LlvmRecord("abacus-unknown-none"))
