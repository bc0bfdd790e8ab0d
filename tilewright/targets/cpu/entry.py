"""Fast calls from Python: a METH_FASTCALL function in the package's code, for arguments that need no conversion.

Through ctypes, looking at an array and taking its address costs a microsecond, more than a small model computes.
``tw_enter(self, arrays, count)`` is a function of the interpreter's METH_FASTCALL kind. It takes the inputs and then
the outputs. If every one is exactly what the program wants, it writes their addresses where the program looks for them,
lets go of the GIL and runs. It returns 1 then, and 2 if the team of threads has to be looked at (`active_threads.py`).

It returns 0, and nothing has run, if any argument is not plain: another type (a subclass of ndarray too), another dtype
object, shape or strides, an output that is read-only or shares memory with another argument. Who called then looks at
them in Python, where the errors and their words are: nothing is decided here but "this one is easy".

Of the interpreter it needs three functions of the stable interface; of NumPy the fields of an array, which every
extension module has compiled in. `usable` compares these with what NumPy itself says; where they are not so (another
interpreter, one without the GIL), there is no such function, and every call is looked at in Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from ...program.program import TensorInfo

# ---- the fields of an object and of an array, in bytes ----
_TYPE = 8
_DATA, _RANK, _SHAPE, _DTYPE, _FLAGS, _ARRAY_BYTES = 16, 24, 32, 56, 64, 72
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 1, 0x100, 0x400

_FASTCALL = 0x80
#: what an argument has to be: a row of 8 bytes each
_FORM = ("dtype", "rank", "shape", "flags", "nbytes")


class _Block(ctypes.Structure):
    """The bytes of the array that `self` is: CPython's definition of the function, then what the function reads."""

    _fields_ = (
        *(("name", ctypes.c_int64), ("code", ctypes.c_int64), ("kind", ctypes.c_int32), ("doc", ctypes.c_int64)),
        ("text", ctypes.c_char * 8),
        *((n, ctypes.c_int64) for n in ("state", "addresses", "forms", "inputs", "arguments", "array_type")),
        *((n, ctypes.c_int64) for n in ("save_thread", "restore_thread", "to_integer", "watched")),
    )


class Forms:
    """What the inputs and outputs of a program have to be."""

    def __init__(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
        infos = (*inputs, *outputs)
        self.inputs, self.arguments = len(inputs), len(infos)
        # The dtypes and shapes are held: the table has their addresses.
        self._dtypes = [t.numpy_dtype for t in infos]
        self._shapes = [np.array(t.shape or (0,), np.int64) for t in infos]
        self.table = np.zeros((len(infos), len(_FORM)), np.int64)
        for i, (t, dtype, shape) in enumerate(zip(infos, self._dtypes, self._shapes, strict=True)):
            flags = _CONTIGUOUS | _ALIGNED | (_WRITEABLE if i >= len(inputs) else 0)
            self.table[i] = id(dtype), len(t.shape), _address(shape), flags, t.nbytes
        self.address = _address(self.table)


class Entry:
    """The function for one context: of its `state`, and of the table of `addresses` that its program reads.

    `function` takes arrays and gives 0, 1 or 2, as above, while the context and its code are there.
    """

    def __init__(self, code: int, state: int, addresses: int, forms: Forms) -> None:
        self._forms = forms
        memory = np.zeros(ctypes.sizeof(_Block), np.uint8)
        block = self._block = _Block.from_buffer(memory)  # type: ignore[arg-type]
        at = ctypes.addressof(block)
        block.text, block.name = b"enter", at + _Block.text.offset
        block.code, block.kind = code, _FASTCALL
        block.state, block.addresses = state, addresses
        block.forms, block.inputs, block.arguments = forms.address, forms.inputs, forms.arguments
        block.array_type = id(np.ndarray)
        block.save_thread, block.restore_thread = map(_function, ("PyEval_SaveThread", "PyEval_RestoreThread"))
        block.to_integer = _function("PyLong_FromSsize_t")
        # The function holds the array, and with it its own definition: CPython reads that until the very end.
        self.function: Callable[..., int] = _api().PyCFunction_NewEx(at, memory, None)

    def expect(self, forms: Forms) -> None:
        """What arguments have to be from now on: as many as before."""
        self._forms, self._block.forms = forms, forms.address

    def watch(self, team_is_busy: bool) -> None:
        """Whether the team is to be looked at after every run."""
        self._block.watched = team_is_busy


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@lru_cache(maxsize=1)
def _api() -> ctypes.PyDLL:
    """The interpreter's functions, with types of our own."""
    api = ctypes.PyDLL(None, handle=ctypes.pythonapi._handle)
    api.PyCFunction_NewEx.restype = ctypes.py_object
    api.PyCFunction_NewEx.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return api


def _function(name: str) -> int:
    return ctypes.cast(getattr(_api(), name), ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def usable() -> bool:
    """Whether objects and arrays lie in memory as is assumed above."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != _DATA or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    locked = np.zeros((2, 3, 5), np.float64)
    locked.flags.writeable = False
    samples: list[np.ndarray] = [np.zeros(7, np.float32), np.zeros((), np.int64), locked, locked.T, locked[:, ::2]]
    return np.ndarray.__basicsize__ >= _ARRAY_BYTES and all(_lies_as_assumed(a) for a in samples)


def _lies_as_assumed(array: np.ndarray) -> bool:
    def word(at: int) -> int:
        return ctypes.c_int64.from_address(id(array) + at).value

    def half(at: int) -> int:
        return ctypes.c_int32.from_address(id(array) + at).value

    if (word(_TYPE), word(_DATA), word(_DTYPE)) != (id(np.ndarray), _address(array), id(array.dtype)):
        return False
    if (half(_RANK), half(_FLAGS)) != (array.ndim, array.flags.num):
        return False
    return tuple((ctypes.c_int64 * array.ndim).from_address(word(_SHAPE))) == array.shape if array.ndim else True


def entry_llvm(waited: int, due: int) -> str:
    """The LLVM IR of @tw_enter. `waited` is where the state has the ticks that threads have waited, `due` where it says
    that it is time to ask how many processors there are."""
    block = {f"at_{name}": getattr(_Block, name).offset for name, *_ in _Block._fields_}
    form = {f"form_{name}": 8 * i for i, name in enumerate(_FORM)}
    array = {"type": _TYPE, "data": _DATA, "rank": _RANK, "shape": _SHAPE, "dtype": _DTYPE, "flags": _FLAGS}
    return _TEXT.format(**block, **form, **array, row=8 * len(_FORM), waited=waited, due=due)


_TEXT = """\
declare void @tw_run(ptr)

; Whether an argument is an array of that form.
define internal i1 @tw_is_plain(ptr %array, ptr %form, ptr %array_type) nounwind {{
  %p_type = getelementptr i8, ptr %array, i64 {type}
  %type = load ptr, ptr %p_type, align 8
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %looks, label %no
looks:
  %p_dtype = getelementptr i8, ptr %array, i64 {dtype}
  %dtype = load ptr, ptr %p_dtype, align 8
  %p_form_dtype = getelementptr i8, ptr %form, i64 {form_dtype}
  %form_dtype = load ptr, ptr %p_form_dtype, align 8
  %same_dtype = icmp eq ptr %dtype, %form_dtype
  %p_flags = getelementptr i8, ptr %array, i64 {flags}
  %flags32 = load i32, ptr %p_flags, align 4
  %flags = zext i32 %flags32 to i64
  %p_form_flags = getelementptr i8, ptr %form, i64 {form_flags}
  %form_flags = load i64, ptr %p_form_flags, align 8
  %has = and i64 %flags, %form_flags
  %same_flags = icmp eq i64 %has, %form_flags
  %p_rank = getelementptr i8, ptr %array, i64 {rank}
  %rank32 = load i32, ptr %p_rank, align 4
  %rank = zext i32 %rank32 to i64
  %p_form_rank = getelementptr i8, ptr %form, i64 {form_rank}
  %form_rank = load i64, ptr %p_form_rank, align 8
  %same_rank = icmp eq i64 %rank, %form_rank
  %two = and i1 %same_dtype, %same_flags
  %three = and i1 %two, %same_rank
  br i1 %three, label %measure, label %no
measure:
  %p_shape = getelementptr i8, ptr %array, i64 {shape}
  %shape = load ptr, ptr %p_shape, align 8
  %p_form_shape = getelementptr i8, ptr %form, i64 {form_shape}
  %form_shape = load ptr, ptr %p_form_shape, align 8
  br label %axis
axis:
  %i = phi i64 [ 0, %measure ], [ %i1, %same ]
  %more = icmp ult i64 %i, %rank
  br i1 %more, label %compare, label %yes
compare:
  %p_size = getelementptr i64, ptr %shape, i64 %i
  %size = load i64, ptr %p_size, align 8
  %p_form_size = getelementptr i64, ptr %form_shape, i64 %i
  %form_size = load i64, ptr %p_form_size, align 8
  %same_size = icmp eq i64 %size, %form_size
  br i1 %same_size, label %same, label %no
same:
  %i1 = add i64 %i, 1
  br label %axis
yes:
  ret i1 true
no:
  ret i1 false
}}

; Whether argument `number` shares no memory with those before it.
define internal i1 @tw_is_apart(ptr %addresses, ptr %forms, i64 %number) nounwind {{
  %p_first = getelementptr i64, ptr %addresses, i64 %number
  %first = load i64, ptr %p_first, align 8
  %row = mul i64 %number, {row}
  %form = getelementptr i8, ptr %forms, i64 %row
  %p_nbytes = getelementptr i8, ptr %form, i64 {form_nbytes}
  %nbytes = load i64, ptr %p_nbytes, align 8
  %end = add i64 %first, %nbytes
  br label %next
next:
  %i = phi i64 [ 0, %0 ], [ %i1, %look ]
  %more = icmp ult i64 %i, %number
  br i1 %more, label %look, label %yes
look:
  %p_other = getelementptr i64, ptr %addresses, i64 %i
  %other = load i64, ptr %p_other, align 8
  %other_row = mul i64 %i, {row}
  %other_form = getelementptr i8, ptr %forms, i64 %other_row
  %p_other_nbytes = getelementptr i8, ptr %other_form, i64 {form_nbytes}
  %other_nbytes = load i64, ptr %p_other_nbytes, align 8
  %other_end = add i64 %other, %other_nbytes
  %before_end = icmp ult i64 %first, %other_end
  %after_begin = icmp ult i64 %other, %end
  %shared = and i1 %before_end, %after_begin
  %i1 = add i64 %i, 1
  br i1 %shared, label %no, label %next
yes:
  ret i1 true
no:
  ret i1 false
}}

define ptr @tw_enter(ptr %self, ptr %arrays, i64 %count) nounwind {{
  %p_block = getelementptr i8, ptr %self, i64 {data}
  %block = load ptr, ptr %p_block, align 8
  %p_to_integer = getelementptr i8, ptr %block, i64 {at_to_integer}
  %to_integer = load ptr, ptr %p_to_integer, align 8
  %p_arguments = getelementptr i8, ptr %block, i64 {at_arguments}
  %arguments = load i64, ptr %p_arguments, align 8
  %p_inputs = getelementptr i8, ptr %block, i64 {at_inputs}
  %inputs = load i64, ptr %p_inputs, align 8
  %p_type = getelementptr i8, ptr %block, i64 {at_array_type}
  %array_type = load ptr, ptr %p_type, align 8
  %p_addresses = getelementptr i8, ptr %block, i64 {at_addresses}
  %addresses = load ptr, ptr %p_addresses, align 8
  %p_forms = getelementptr i8, ptr %block, i64 {at_forms}
  %forms = load ptr, ptr %p_forms, align 8
  %as_many = icmp eq i64 %count, %arguments
  br i1 %as_many, label %next, label %refuse
next:
  %i = phi i64 [ 0, %0 ], [ %i1, %fits ]
  %more = icmp ult i64 %i, %arguments
  br i1 %more, label %look, label %run
look:
  %p_array = getelementptr ptr, ptr %arrays, i64 %i
  %array = load ptr, ptr %p_array, align 8
  %row = mul i64 %i, {row}
  %form = getelementptr i8, ptr %forms, i64 %row
  %plain = call i1 @tw_is_plain(ptr %array, ptr %form, ptr %array_type)
  br i1 %plain, label %take, label %refuse
take:
  %p_data = getelementptr i8, ptr %array, i64 {data}
  %data = load ptr, ptr %p_data, align 8
  %p_address = getelementptr ptr, ptr %addresses, i64 %i
  store ptr %data, ptr %p_address, align 8
  %is_input = icmp ult i64 %i, %inputs
  br i1 %is_input, label %fits, label %output
output:
  %apart = call i1 @tw_is_apart(ptr %addresses, ptr %forms, i64 %i)
  br i1 %apart, label %fits, label %refuse
fits:
  %i1 = add i64 %i, 1
  br label %next
run:
  %p_state = getelementptr i8, ptr %block, i64 {at_state}
  %state = load ptr, ptr %p_state, align 8
  %p_save = getelementptr i8, ptr %block, i64 {at_save_thread}
  %save = load ptr, ptr %p_save, align 8
  %p_restore = getelementptr i8, ptr %block, i64 {at_restore_thread}
  %restore = load ptr, ptr %p_restore, align 8
  %thread = call ptr %save()
  call void @tw_run(ptr %state)
  call void %restore(ptr %thread)
  %p_waited = getelementptr i8, ptr %state, i64 {waited}
  %waited = load i64, ptr %p_waited, align 8
  %p_watched = getelementptr i8, ptr %block, i64 {at_watched}
  %watched = load i64, ptr %p_watched, align 8
  %p_due = getelementptr i8, ptr %state, i64 {due}
  %due = load i64, ptr %p_due, align 8
  %either = or i64 %waited, %watched
  %any = or i64 %either, %due
  %look_at_team = icmp ne i64 %any, 0
  %code = select i1 %look_at_team, i64 2, i64 1
  %ran = call ptr %to_integer(i64 %code)
  ret ptr %ran
refuse:
  %refused = call ptr %to_integer(i64 0)
  ret ptr %refused
}}
"""
