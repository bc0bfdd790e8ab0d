"""Identifiers for kernels and tensors of a model in C-like languages, and text that is safe in a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .c99 import KEYWORDS

#: words of C++ and of newer C: headers are read by all of them
_NEWER = """
alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class co_await co_return co_yield
compl concept consteval constexpr constinit const_cast decltype delete dynamic_cast explicit export false friend module
mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires
static_assert static_cast template this thread_local throw true try typeid typename typeof using virtual wchar_t xor
xor_eq
"""
#: macros without arguments that are not written in capitals, of the headers of systems
_MACROS = """
I complex errno far i386 imaginary interface linux math_errhandling near noreturn small stderr stdin stdout unix
"""
#: headers of the C library, whose files those of a model must not replace
_HEADERS = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic stdbit
stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
"""
_WORDS, _FILES = frozenset((*_NEWER.split(), *_MACROS.split())), frozenset((*_HEADERS.split(), "example"))


def taken_by_c(name: str) -> bool:
    """Whether a compiler or a header may read a parameter of this name as something else: words of C and C++, types,
    and what is written in capitals, as macros are."""
    return name in KEYWORDS or name in _WORDS or name.endswith("_t") or (len(name) > 1 and name == name.upper())


def parameters(texts: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """A name for each parameter of a function, all different, none of which C takes for something else.

    >>> parameters(["image", "NULL", "errno", "new", "X"])
    ['image', 'NULL_', 'errno_', 'new_', 'X']
    """
    plain = map(identifier, texts)
    return distinct((f"{n}_" if taken_by_c(n) else n for n in plain), taken, trim=False)


def model_name(text: str) -> str:
    """What a model's functions and files begin with.

    >>> model_name("resnet-18"), model_name("example"), model_name("math")
    ('resnet_18', 'example_model', 'math_model')
    """
    name = identifier(text)
    return f"{name}_model" if name.lower() in _FILES else name


def identifier(text: str) -> str:
    """A C identifier that looks like `text`.

    >>> identifier("my-model.v2"), identifier("3d"), identifier("float")
    ('my_model_v2', 'm3d', 'float_')
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "model"
    if name[0].isdigit():
        name = f"m{name}"
    return f"{name}_" if name in KEYWORDS else name


def distinct(texts: Iterable[str], taken: Iterable[str] = (), trim: bool = True) -> list[str]:
    """An identifier for each text, all different; texts that are identifiers already stay unless `trim`."""
    used, names = set(taken), []
    for text in texts:
        base = name = identifier(text) if trim else text
        number = 1
        while name in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        names.append(name)
    return names


def comment(text: str, limit: int = 100) -> str:
    """Text that neither ends a comment nor continues its line.

    >>> comment("a*/b")
    'a* /b'
    """
    text = "".join(c if " " <= c < "\x7f" else " " for c in text).replace("\\", "/")
    text = text.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
    return text if len(text) <= limit else text[: limit - 4] + " ..."
