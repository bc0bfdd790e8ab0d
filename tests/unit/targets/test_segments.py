"""Programs of several devices cut into segments: copies move to the ends of them only where memory allows it."""

from __future__ import annotations

import hashlib
import random

import pytest

from tilewright.program.program import COPY, BufferRef, Call, DeviceInfo, Program, TensorInfo
from tilewright.targets.multi_device.segments import BOUNCE, HOST, bounces, host_program, segments

X, Y = TensorInfo("x", (16,), "f32"), TensorInfo("y", (16,), "f32")
IN, OUT = BufferRef("input", 0, 0, 64), BufferRef("output", 0, 0, 64)
DEVICES = tuple(DeviceInfo(n, 256) for n in ("cpu", "gpu", "other"))


def at(device: int, place: int) -> BufferRef:
    return BufferRef("arena", device, 64 * place, 64)


def copy(a: BufferRef, b: BufferRef, device: int) -> Call:
    return Call(COPY, (a, b), (1,), device=device)


def call(name: str, device: int, *places: BufferRef) -> Call:
    """A kernel that reads all buffers but the last, and writes that."""
    return Call(name, places, (len(places) - 1,), device=device)


def cut(*calls: Call) -> list[tuple[int, str, int, int]]:
    """Device, kernels, uploads and downloads of each segment."""
    program = Program((X,), (Y,), (), calls, 768, devices=DEVICES)
    program.check()
    return [
        (s.device, "".join(c.symbol if c.symbol != COPY else "=" for _, c in s.calls), len(s.uploads), len(s.downloads))
        for s in segments(program)
    ]


def test_there_and_back():
    calls = (
        copy(IN, at(1, 0), 1),
        call("a", 1, at(1, 0), at(1, 1)),
        copy(at(1, 1), at(0, 0), HOST),
        call("b", 0, at(0, 0), OUT),
    )
    assert cut(*calls) == [(1, "a", 1, 1), (0, "b", 0, 0)]


def test_copies_join_a_segment_unless_their_memory_is_in_use():
    begin = (copy(IN, at(1, 0), 1), call("a", 1, at(1, 0), at(1, 1)))
    assert cut(*begin, copy(IN, at(1, 2), 1), call("b", 1, at(1, 2), at(1, 3))) == [(1, "ab", 2, 0)]
    assert cut(*begin, copy(IN, at(1, 0), 1), call("b", 1, at(1, 0), at(1, 3))) == [(1, "a", 1, 0), (1, "b", 1, 0)]
    fetched = (*begin, copy(at(1, 1), at(0, 0), HOST))
    assert cut(*fetched, call("b", 1, at(1, 0), at(1, 2))) == [(1, "ab", 1, 1)]
    assert cut(*fetched, call("b", 1, at(1, 0), at(1, 1))) == [(1, "a", 1, 1), (1, "b", 0, 0)]
    back = copy(at(0, 0), at(1, 2), 1)  # what was just fetched
    assert cut(*fetched, back, call("b", 1, at(1, 2), at(1, 3))) == [(1, "a", 1, 1), (1, "b", 1, 0)]


def test_what_the_host_reads_later_is_fetched_at_once():
    begin = (
        copy(IN, at(1, 0), 1),
        call("a", 1, at(1, 0), at(1, 1)),
        copy(at(1, 0), at(0, 0), HOST),
        call("b", 0, at(0, 0), at(0, 1)),
    )
    free, used = copy(at(1, 1), at(0, 2), HOST), copy(at(1, 1), at(0, 0), HOST)
    assert cut(*begin, free, call("c", 0, at(0, 2), OUT)) == [(1, "a", 1, 2), (0, "bc", 0, 0)]
    assert cut(*begin, used, call("c", 0, at(0, 0), OUT)) == [
        (1, "a", 1, 1),
        (0, "b", 0, 0),
        (1, "", 0, 1),
        (0, "c", 0, 0),
    ]


def test_between_two_devices_values_go_by_the_host():
    calls = (copy(IN, at(1, 0), 1), copy(at(1, 0), at(2, 0), 2), copy(at(2, 0), at(2, 1), 2), copy(at(2, 1), OUT, HOST))
    assert cut(*calls) == [(1, "", 1, 1), (2, "=", 1, 1)]
    assert bounces(Program((X,), (Y,), (), calls, 768, devices=DEVICES)) == {1: 64}


def test_the_host_has_a_program_of_its_own():
    calls = (call("a", 0, IN, at(0, 1)), copy(at(0, 1), OUT, HOST))
    program = Program((X,), (Y,), (), calls, 768, devices=DEVICES)
    made = host_program(program, list(enumerate(calls)))
    made.check()
    assert [t.name for t in made.outputs] == ["y", "arena"] and made.outputs[1].nbytes == 256 and not made.devices
    assert made.calls[0].args[1] == BufferRef("output", 1, 64, 64)


# ---- any program means the same in segments


def drawn(seed: int) -> Program:
    """Kernels and copies on all devices, on places that overlap by chance."""
    rng = random.Random(seed)

    def place(device: int) -> BufferRef:
        if device == HOST and rng.random() < 0.2:
            return IN
        return BufferRef("arena", device, 32 * rng.randrange(5), 64)

    calls = []
    for n in range(rng.randint(4, 14)):
        a, b = rng.choices(range(3), (2, 2, 1), k=2)
        to = BufferRef("arena", b, 32 * rng.randrange(5), 64)
        if rng.random() < 0.6:
            calls.append(copy(place(a), to, b))
        else:
            calls.append(call(f"k{n}", b, place(b), place(b), to))
    return Program((X,), (Y,), (), tuple(calls), 768, devices=DEVICES)


def memory() -> dict[tuple[str, int], bytearray]:
    spaces = [("input", 0), *(("arena", d) for d in range(3))]
    return {s: bytearray((17 * n + i) % 251 for i in range(256)) for n, s in enumerate(spaces)}


def run(c: Call, spaces) -> None:
    """A copy, or a kernel whose result depends on its name and all that it reads."""
    *read, made = (memoryview(spaces[r.space, r.index])[r.offset : r.offset + r.nbytes] for r in c.args)
    if c.symbol == COPY:
        made[:] = bytes(read[0])
    else:
        made[:] = hashlib.shake_128(c.symbol.encode() + b"".join(read)).digest(64)


@pytest.mark.parametrize("seed", range(8))
def test_programs_mean_the_same_in_segments(seed):
    for n in range(100):
        program = drawn(100 * seed + n)
        program.check()
        want, got = memory(), memory()
        for c in program.calls:
            run(c, want)
        got |= {(BOUNCE, i): bytearray(size) for i, size in bounces(program).items()}
        for s in segments(program):
            steps = [copy(t.host, t.device, 1) for t in s.uploads]
            steps += [c for _, c in s.calls] + [copy(t.device, t.host, 0) for t in s.downloads]
            for c in steps:
                run(c, got)
        assert {k: v for k, v in got.items() if k[0] != BOUNCE} == want, str(program)
