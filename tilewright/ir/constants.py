"""The constant table: weights live here, not in the IR.

A level-2 or level-3 module refers to an array by symbol (``"tw.constant"() {symbol = "w0"} : () -> tensor<...>``). The
table maps the symbol to a NumPy array, which may be a memory map of the model file. On disk a table is one file:
8 bytes magic, 8 bytes header length, a JSON header {symbol: {dtype, shape, offset, nbytes}}, then the arrays, each
aligned to 64 bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping

import numpy as np

from ..support.dtypes import NUMPY
from ..support.errors import ModelError
from ..support.files import replacing
from ..support.huge_pages import release_pages
from ..support.lazy_array import LazyArray, Stored
from ..support.mapped_file import MappedFile, map_file
from .types import dtype_of

MAGIC = b"TWCONST1"
ALIGN = 64


class ConstantTable(Mapping[str, np.ndarray]):
    """Symbol -> read-only array. Symbols are never reused, so passes can share a table. A `LazyArray` is computed each
    time that it is asked for; `stored` gives it as it is.

    >>> table = ConstantTable()
    >>> symbol = table.add(np.zeros(3, np.float32), "bias")
    >>> symbol, table[symbol].shape
    ('bias', (3,))
    """

    def __init__(self) -> None:
        #: the files in which arrays are mapped
        self.files: tuple[MappedFile, ...] = ()
        self._arrays: dict[str, Stored] = {}
        self._digests: dict[str, str] = {}
        self._samples: dict[str, bytes] = {}
        #: bytes of the arrays before any was folded, and what folding has added to them
        self._own: int | None = None
        self._more = 0

    def copy(self) -> ConstantTable:
        """Another table with the same arrays."""
        made = ConstantTable()
        made.files = self.files
        made._arrays.update(self._arrays)
        made._digests.update(self._digests)
        made._samples.update(self._samples)
        return made

    def __getitem__(self, symbol: str) -> np.ndarray:
        return np.asarray(self._arrays[symbol])

    def stored(self, symbol: str) -> Stored:
        """The array, or what computes it."""
        return self._arrays[symbol]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def add(self, array: Stored, hint: str = "c") -> str:
        """Store an array under a fresh symbol made from `hint`; the array must not be changed afterwards."""
        dtype_of(array)
        base = "".join(c if c.isalnum() or c in "._-/" else "_" for c in hint) or "c"
        symbol, n = base, 1
        while symbol in self._arrays:
            symbol, n = f"{base}.{n}", n + 1
        if isinstance(array, np.ndarray):
            array = array.view()
            array.flags.writeable = False
        self._arrays[symbol] = array
        return symbol

    def discard(self, symbol: str) -> None:
        self._arrays.pop(symbol, None)
        self._digests.pop(symbol, None)
        self._samples.pop(symbol, None)

    def keep_only(self, symbols: set[str]) -> None:
        for symbol in set(self._arrays) - symbols:
            self.discard(symbol)

    def digest(self, symbol: str) -> str:
        """SHA-256 of the array's bytes, dtype and shape (computed once)."""
        if symbol not in self._digests:
            a = np.ascontiguousarray(self[symbol])
            h = hashlib.sha256(f"{dtype_of(a)}{a.shape}".encode())
            h.update(a.reshape(-1).view(np.uint8).data)
            self._digests[symbol] = h.hexdigest()
            release_pages(a)
        return self._digests[symbol]

    def equal(self, one: str, other: str) -> bool:
        """Whether two arrays of one shape and dtype have the same bytes; of a `LazyArray`, whether they are of one."""
        a, b = self._arrays[one], self._arrays[other]
        if isinstance(a, LazyArray) or isinstance(b, LazyArray):
            return getattr(a, "whole", a) is getattr(b, "whole", b)
        return self.digest(one) == self.digest(other)

    def sample(self, symbol: str) -> bytes:
        """A few of the array's elements (read once): most arrays that differ, differ in them."""
        if symbol not in self._samples:
            a = self._arrays[symbol]
            if isinstance(a, LazyArray):
                return str(id(a.whole)).encode()
            starts = range(0, a.size, max(1, a.size // 8))  # each place of a file that is read is a page of it
            self._samples[symbol] = b"".join(a.flat[i : i + 8].tobytes() for i in starts)
            release_pages(a)
        return self._samples[symbol]

    def may_grow(self, more: int, most: int) -> bool:
        """Whether folding may add so many bytes: in all as many as the arrays had before it began, and `most`."""
        self._own = self.nbytes if self._own is None else self._own
        if self._more + more > self._own + most and more > 0:
            return False
        self._more += more
        return True

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self._arrays.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file, atomically."""
        header, offset = {}, 0
        for symbol, a in self._arrays.items():
            header[symbol] = {"dtype": dtype_of(a), "shape": list(a.shape), "offset": offset, "nbytes": a.nbytes}
            offset += -(-a.nbytes // ALIGN) * ALIGN
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 16) % ALIGN)
        with replacing(path) as f:
            f.write(MAGIC + struct.pack("<Q", len(text)) + text)
            for a in self.values():
                f.write(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data)
                f.write(b"\0" * (-a.nbytes % ALIGN))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> ConstantTable:
        """Memory-map a table written by `save`; ModelError if it is damaged."""
        table = ConstantTable()
        try:
            file = map_file(path)
            head = file.data[:16].tobytes()
            if head[:8] != MAGIC:
                raise ValueError("wrong magic")
            (length,) = struct.unpack("<Q", head[8:])
            header, data = json.loads(file.data[16 : 16 + length].tobytes()), file.data[16 + length :]
            table.files = (file,)
            for symbol, e in header.items():
                raw = data[e["offset"] : e["offset"] + e["nbytes"]]
                table._arrays[symbol] = raw.view(NUMPY[e["dtype"]]).reshape(e["shape"])
        except (ValueError, KeyError, struct.error, TypeError) as e:
            raise ModelError(f"{path} is not a constant table or is damaged: {e}", stage="parse") from None
        return table
