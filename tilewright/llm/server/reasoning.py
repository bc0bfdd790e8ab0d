"""What a model thinks before it answers, apart from the answer."""

from __future__ import annotations

from .tool_calls import Delta

#: marks around reasoning, by the names that ``--reasoning-parser`` takes
MARKS = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
}


def marks_of_template(template: str) -> str | None:
    """The name of the marks that a chat template knows; None for a model that does not reason."""
    return next((name for name, (begin, end) in MARKS.items() if begin in template or end in template), None)


class ReasoningParser:
    """Splits text into reasoning, which comes first, and the rest. `inside`: the prompt has begun the reasoning.

    >>> p = ReasoningParser("think")
    >>> p.feed("<think>so it is</th"), p.feed("ink>Yes")
    (([Delta(kind='reasoning', text='so it is', index=0)], ''), ([], 'Yes'))
    """

    def __init__(self, marks: str, inside: bool = False) -> None:
        self._begin, self._end = MARKS[marks]
        self._rest, self._inside, self._over, self._some = "", inside, False, False

    def feed(self, text: str) -> tuple[list[Delta], str]:
        """The reasoning and the text that a piece adds."""
        if self._over:
            text = text.lstrip() if self._inside else text  # empty lines between reasoning and answer
            self._inside = self._inside and not text
            return [], text
        self._rest += text
        if not self._inside:
            begin = self._rest.lstrip()
            if self._begin.startswith(begin):
                if begin != self._begin:
                    return [], ""
            elif not begin.startswith(self._begin):
                return [], self._leave()
            self._inside, self._rest = True, begin[len(self._begin) :]
        thought, end, rest = self._rest.partition(self._end)
        if end:
            self._over, self._rest = True, ""
            return self._thought(thought.rstrip()), self.feed(rest)[1]
        held = max((n for n in range(len(self._end)) if self._rest.endswith(self._end[:n])), default=0)
        keep = len(self._rest[: len(self._rest) - held].rstrip())
        thought, self._rest = self._rest[:keep], self._rest[keep:]
        return self._thought(thought), ""

    def finish(self) -> tuple[list[Delta], str]:
        """What was held back, when the text has ended."""
        if self._inside and not self._over:
            rest, self._rest = self._rest, ""
            return self._thought(rest.rstrip()), ""
        return [], self._leave()

    def _thought(self, text: str) -> list[Delta]:
        text = text if self._some else text.lstrip()
        self._some = self._some or bool(text)
        return [Delta("reasoning", text)] if text else []

    def _leave(self) -> str:
        rest, self._rest, self._over = self._rest, "", True
        return rest


__all__ = ["MARKS", "ReasoningParser", "marks_of_template"]
