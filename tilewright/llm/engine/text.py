"""From tokens to text as they come: whole characters, and nothing that may turn out to be a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Text:
    """The text of one request.

    >>> text = Text(["END"])
    >>> [text.push(data) for data in (b"caf\\xc3", b"\\xa9 E", b"N", b"D!")]
    ['caf', 'é ', '', '']
    >>> text.stopped
    'END'
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [s for s in stop if s]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None

    def push(self, data: bytes, final: bool = False) -> str:
        """Bytes of a token; what can be shown now. Once a stop string is there, `stopped` is it, and nothing more
        comes."""
        if self.stopped is not None:
            return ""
        text = self._held + self._decoder.decode(data, final)
        places = [(at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if places:
            at, self.stopped = min(places)
            self._held = ""
            return text[:at]
        hold = 0 if final else max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def finish(self) -> str:
        """What was held back."""
        return self.push(b"", True)


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


__all__ = ["Text"]
