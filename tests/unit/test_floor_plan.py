"""The floor plan (docs/layout.md): imports run upward in the list of rooms and never downward, lazy and type-only
imports included."""

import ast
import functools
import re
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
#: from the top: a room knows those above it, not those below
ROOMS = (
    *("support", "ir", "ops", "graph", "tensor", "schedule", "program", "codegen", "targets", "runtime", "frontends"),
    *("driver", "tune", "lang", "llm", "report", "compat", "cli"),
)
#: other names of modules, kept for programs that use them
ALIASES = ("errors", "te", "ort_like", "onnx_backend")
#: rooms on top of the driver that do not know each other's insides
APART = ("tune", "lang", "report")
#: more files than this in a circle of imports are too many to understand at once
CIRCLE = 4


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ["tilewright", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@functools.cache
def statements(name: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module, anywhere in it: read once for all tests."""
    return [n for n in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))]


def imports(name: str) -> set[tuple[str, int]]:
    """(module of the package, line) of everything that a module imports."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[tuple[str, int]] = set()
    for node in statements(name):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.update((m, node.lineno) for m in (full if full in MODULES else base,) if m in MODULES)
        else:
            for alias in node.names:
                module = alias.name
                while module and module not in MODULES:
                    module = module.rpartition(".")[0]
                found.update({(module, node.lineno)} if module else ())
    return found


def room(name: str) -> str:
    """The room of a module; those of the root itself are outside of the plan: it knows all rooms."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_every_room_is_on_the_plan():
    assert {room(m) for m in MODULES} - {"", "__main__", *ALIASES} == set(ROOMS)


def test_unit_tests_have_the_rooms_of_the_package():
    """What concerns the whole package stands beside the folders."""
    folders = {p.parent.name for p in Path(__file__).parent.glob("*/test_*.py")}
    assert folders - {"benchmarks"} <= set(ROOMS)


def test_the_page_shows_the_plan():
    page = (Path(__file__).parents[2] / "docs" / "layout.md").read_text(encoding="utf-8")
    table = page.split("| room | what is there |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)/` \|", table, re.M)) == ROOMS


@pytest.mark.parametrize("here", ROOMS)
def test_imports_run_upward(here):
    wrong = []
    for name in MODULES:
        if room(name) != here:
            continue
        for module, line in sorted(imports(name)):
            there = room(module)
            if not there:  # the root: its version only
                continue
            below = there in ALIASES or ROOMS.index(there) > ROOMS.index(here)
            if below or (there != here and there in APART and here in APART):
                wrong.append(f"{name}, line {line}: {module}")
    assert not wrong, f"{here}/ must not know:\n" + "\n".join(wrong)


def test_targets_stand_alone():
    """What two of them need stands beside their folders, in `accelerator` (for chips), `multi_device` (for what runs
    on more than one device), `gpu` or in `codegen/`; but the C header that a microcontroller's objects come with is
    the one of the target C, and a site for WebGPU is one of WebAssembly with more in it."""
    shared = {"accelerator", "gpu", "multi_device"}
    folders = {p.parent.name for p in (PACKAGE / "targets").glob("*/__init__.py")} - shared
    wrong = []
    for name in MODULES:
        _, *here = name.split(".")
        for module, line in sorted(imports(name)):
            _, *there = module.split(".")
            apart = here[:1] == there[:1] == ["targets"] and here[1:2] != there[1:2] and there[1] in folders
            if apart and module not in ("tilewright.targets.c.library", "tilewright.targets.wasm.files"):
                wrong.append(f"{name}, line {line}: {module}")
    assert not wrong, "\n".join(wrong)


def test_the_root_is_asked_for_nothing_but_names_of_all():
    """What comes from `tilewright` itself is the version, or public names where users of the package stand."""
    for name in MODULES:
        if room(name) in ("", "__main__", "cli", "compat"):
            continue
        for node in statements(name):
            if isinstance(node, ast.ImportFrom) and node.level and not node.module:
                depth = len(name.split(".")) - (MODULES[name].name != "__init__.py")
                if node.level == depth:
                    names = {a.name for a in node.names if f"tilewright.{a.name}" not in MODULES}
                    assert names <= {"__version__"}, f"{name}, line {node.lineno}"


def test_circles_are_small():
    """Files that import each other in a circle, as they are loaded or later."""
    edges = {m: {i for i, _ in imports(m) if i != m and room(i)} for m in MODULES if room(m)}
    for circle in circles(edges):
        assert len(circle) <= CIRCLE, sorted(circle)


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one node (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(v: str) -> None:
        order[v] = low[v] = len(order)
        stack.append(v)
        for w in edges.get(v, ()):
            if w not in order:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], order[w])
        if low[v] == order[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for v in edges:
        if v not in order:
            visit(v)
    return found
