"""What the README and the pages of docs/ name is there: files, folders, commands with their flags, targets of make."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import tilewright
from tilewright.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "tilewright"
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
#: names in pages that say how something would be added
INVENTED = {"tilewright/graph/double.py", "tests/ir/cases/double.mlir"}
#: folders that pages name and that are no part of the repository
MADE = ("out", "dist", ".venv", "benchmarks/models")
#: groups of entry points, which look like modules
GROUPS = {"tilewright.rules", "tilewright.targets"}
#: pages about how things were
PAST = {"CHANGELOG"}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"^ {4}\S.*$", re.M)
SPAN = re.compile(r"`([^`]+)`")
#: a name with a folder in front, or a folder: what it begins with decides whether it can be one of ours
FILE = re.compile(r"(?<![\w/.:~-])[\w.-]+/[\w./*-]*")


def ids(page: Path) -> str:
    return page.stem


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def code(page: Path) -> list[str]:
    """Lines of code in a page: of blocks that are no output, of indented blocks, and spans in sentences."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line for kind, body in BLOCK.findall(text) if kind in ("", "bash", "console") for line in body.splitlines()
    ]
    rest = BLOCK.sub("", text)
    return [*lines, *INDENTED.findall(rest), *(" ".join(span.split()) for span in SPAN.findall(rest))]


def is_there(name: str) -> bool:
    """Whether a name is a file or folder of the repository or, left away as pages do, of the package."""
    return any(any(root.glob(name.rstrip("/"))) for root in (REPOSITORY, PACKAGE))


def begins_with_ours(name: str) -> bool:
    first = name.split("/", 1)[0]
    return first not in ("", ".", "..") and is_there(first)


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in PAST], ids=ids)
def test_files_and_folders_are_there(page):
    spans = [span for span in SPAN.findall(prose(page)) if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", span)]
    folders = {s for s in spans if s.endswith("/")}
    bare = {s for s in spans if s.endswith(".py") and "/" not in s}
    longer = {name.rstrip(".") for name in FILE.findall(prose(page)) if begins_with_ours(name)}
    named = [name for name in (folders | longer) - INVENTED if not re.match(rf"({'|'.join(MADE)})(/|$)", name)]
    missing = sorted(name for name in named if not is_there(name))
    assert not missing, "these are not there"
    assert not bare, "files are named with their folder: nobody finds one of two that are called the same"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_modules_are_there(page):
    """`tilewright.room.module` in sentences and code, and one name in it; of a page about the past, what is now."""
    text = page.read_text(encoding="utf-8")
    if page.stem in PAST:
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.M)
    for name in set(re.findall(r"(?<![\w./-])tilewright(?:\.[a-z_]\w*)+", text)) - GROUPS:
        parts = name.split(".")[1:]
        place = PACKAGE
        while parts and ((place / parts[0]).is_dir() or (place / f"{parts[0]}.py").exists()):
            place /= parts.pop(0)
        if place == PACKAGE:
            assert parts[0] in tilewright.__all__, name
        else:
            source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            assert len(parts) <= 1 and all(re.search(rf"\b{p}\b", source.read_text()) for p in parts), name


def flags(command) -> set[str]:
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_and_their_flags_are_there(page):
    commands = typer.main.get_command(app)
    for line in code(page):
        for call in re.split(r"(?<![\w./,\"@-])(?<!import )tilewright (?=[a-z-])", line)[1:]:
            words = call.split()
            command = commands
            while words and hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*", words[0]):
                assert words[0] in command.commands, f"{line}\nthere is no command {words[0]!r}"
                command = command.commands[words.pop(0)]
            known = flags(command) | flags(commands)
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words)):
                assert flag in known, f"{line}\nthe command has no {flag}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_targets_of_make_are_there(page):
    known = set(re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text(), re.M))
    for line in code(page):
        found = re.match(r"(?:\$ )?make (?:[A-Z]\w*=\S+ )*([a-z][\w-]*)", line.strip())
        assert found is None or found[1] in known, line


def test_words_of_the_glossary_are_in_the_code():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    for row in re.findall(r"^\| (?!term |---).*\|$", (REPOSITORY / "docs" / "glossary.md").read_text(), re.M):
        term, meaning, places = (cell.strip() for cell in row.strip("|").split("|"))
        assert term and meaning, row
        names = SPAN.findall(places)
        assert names, f"{term}: where does it stand?"
        for name in names:
            assert "/" in name or re.search(rf"\b{re.escape(name)}\b", sources), f"{term}: no {name} in the code"


def test_every_page_is_in_the_index_and_on_the_site():
    docs = REPOSITORY / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    index = (docs / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(((?:chips/)?\w+\.md)\)", index)) == pages - {"index.md"}
    nav = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    assert set(re.findall(r"- ((?:chips/)?\w+\.md)$", nav, re.M)) == pages | {"CONTRIBUTING.md", "CHANGELOG.md"}


def test_results_that_are_listed_are_there():
    folder = REPOSITORY / "benchmarks" / "results"
    for name in re.findall(r"\]\((\w+\.md)\)", (folder / "README.md").read_text(encoding="utf-8")):
        assert (folder / name).exists(), name


def test_the_readme_says_how_much_code_there_is():
    """Within a twentieth: what a model passes through, and the whole package."""
    script = [sys.executable, "-m", "tests.support.way_of_a_model", "examples/digits/digits.onnx"]
    done = subprocess.run(script, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    counted = [int(n) for n in re.findall(r"\d+", done.stdout)]
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    says = [int(n.replace(",", "")) for pair in re.findall(r"(\d+) files with ([\d,]+) lines", readme) for n in pair]
    assert says == pytest.approx(counted, rel=0.05), f"README.md says {says}, counted are {counted}"


def test_the_reference_shows_what_is_there():
    names = re.findall(r"^::: ([\w.]+)$", (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    shown = [pkgutil.resolve_name(name) for name in names]
    # as the root finds them: collecting doctests puts the modules of old names in their place
    public = [tilewright.__getattr__(name) for name in tilewright.__all__ if name not in ("__version__", "tune")]
    assert [p for p in public if p not in shown and p is not tilewright.TilewrightError] == []
