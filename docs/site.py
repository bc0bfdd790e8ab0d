"""What `make docs` needs beside the pages: files of other folders that pages link to, and docstrings as Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

REPOSITORY = Path(__file__).resolve().parents[1]
#: an example in a docstring: lines with a prompt, and what follows until an empty line
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.M)


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """The pages get what lies outside of docs/ and is linked to, under the same names."""
    results = sorted((REPOSITORY / "benchmarks" / "results").glob("*.*"))
    for path in (REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md", *results):
        if path.suffix in (".md", ".svg"):
            name = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, where the pages of docs/ lie beside the other files."""
    markdown = re.sub(r"\]\(\.\./(benchmarks/|CHANGELOG|CONTRIBUTING)", r"](\1", markdown)
    return re.sub(r"\]\(docs/", "](", markdown)


class Examples(griffe.Extension):
    """Examples of docstrings become blocks of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)


def fenced(example: re.Match[str]) -> str:
    indent = example[1]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"
