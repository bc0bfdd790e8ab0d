"""Internal errors that a slower path makes up for: they are logged with their traceback, and raised where
`TILEWRIGHT_STRICT` is set, as in tests."""

from __future__ import annotations

import logging
from pathlib import Path

from .errors import TilewrightError
from .options import get

log = logging.getLogger("tilewright")
_PACKAGE = str(Path(__file__).resolve().parents[1])


def note(e: Exception, instead: str) -> None:
    """In an ``except`` clause that goes on: if the error is none that is raised on purpose, log it, with what is done
    `instead`; raise it where bugs are errors.

    >>> note(TilewrightError("sizes are not known"), "the model is compiled for each size")
    """
    if isinstance(e, TilewrightError):
        return
    if get("TILEWRIGHT_STRICT"):
        raise e
    log.warning("a bug in the compiler, %s: %s: %s", instead, type(e).__name__, e, exc_info=e)


def note_own(e: Exception, instead: str) -> None:
    """As `note`, where code of others may raise anything: only what was raised in this package is a bug."""
    place = e.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is not None and place.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        note(e, instead)


__all__ = ["note", "note_own"]
