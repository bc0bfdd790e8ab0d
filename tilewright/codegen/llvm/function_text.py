"""Builder of LLVM IR text for functions that call kernels, and what such functions share."""

from __future__ import annotations


class FunctionText:
    """The body of a function: its lines so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._values = 0

    def add(self, line: str) -> None:
        self.lines.append("  " + line)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def value(self, text: str) -> str:
        """The name of a new value, which is `text`."""
        self._values += 1
        self.add(f"%v{self._values} = {text}")
        return f"%v{self._values}"

    def behind(self, base: str, offset: int | str, word: str = "i64") -> str:
        """An address so many bytes behind another; `word` is the type of numbers of bytes."""
        return base if offset == 0 else self.value(f"getelementptr i8, ptr {base}, {word} {offset}")


def copy_llvm(head: str) -> str:
    """A function that copies a thread's share of memory, in whole lines of 64 bytes; `head`: its linkage and name.

    >>> copy_llvm("internal void @copy").splitlines()[3]
    'define internal void @copy(ptr %to, ptr %from, i64 %size, i64 %tid, i64 %n) nounwind {'
    """
    return _COPY.replace("HEAD", head)


_COPY = """\
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

define HEAD(ptr %to, ptr %from, i64 %size, i64 %tid, i64 %n) nounwind {
  %up = add i64 %n, 63
  %padded = add i64 %size, %up
  %share = udiv i64 %padded, %n
  %chunk = and i64 %share, -64
  %whole = add i64 %chunk, 64
  %start = mul i64 %whole, %tid
  %begin = call i64 @llvm.umin.i64(i64 %start, i64 %size)
  %next = add i64 %begin, %whole
  %end = call i64 @llvm.umin.i64(i64 %next, i64 %size)
  %bytes = sub i64 %end, %begin
  %d = getelementptr i8, ptr %to, i64 %begin
  %s = getelementptr i8, ptr %from, i64 %begin
  call void @llvm.memcpy.p0.p0.i64(ptr %d, ptr %s, i64 %bytes, i1 false)
  ret void
}
"""
