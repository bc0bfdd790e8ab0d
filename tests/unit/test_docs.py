"""The pages of docs/ and the README are true: their code runs, and what they show is what it prints.

Every ```python block of a page runs, in order, in one namespace and one new folder. Every ```console block runs its
lines ``$ tilewright ...`` in that folder. A ```mlir, ```text or ```c block that follows a ```python block must be what
that block printed, and the other lines of a ```console block what the commands printed. Blocks of other kinds are only
read. A picture (.svg) that a page makes is the one that lies beside it.

After a change that is meant: ``TILEWRIGHT_UPDATE_GOLDEN=1 pytest tests/unit/test_docs.py`` corrects the pages.

Each page runs in a process of its own, because some define operators. What depends on the processor (the levels after
scheduling) is shown for `MACHINE`, on every machine.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
#: pages without code that runs
OTHERS = [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
UPDATE = bool(os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"))
SHOWN = ("mlir", "text", "c")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
#: those that have something to run
RUN = [p for p in PAGES if {"python", "console"} & {kind for kind, _ in BLOCK.findall(p.read_text(encoding="utf-8"))}]
#: an ordinary processor with AVX-512
MACHINE = {
    "triple": "x86_64-unknown-linux-gnu",
    "cpu": "x86-64-v4",
    "features": ("avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "vector_bytes": 64,
    "vector_registers": 32,
    "l1_bytes": 32 << 10,
    "l2_bytes": 1 << 20,
}


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.stem)
def test_page(page, tmp_path):
    (tmp_path / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), str(page)]
    done = subprocess.run(command, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    new = json.loads(done.stdout.rpartition("\n")[2])
    old = page.read_text(encoding="utf-8")
    pictures = {page.parent / p.name: p for p in (tmp_path / "work").glob("*.svg")}
    if UPDATE:
        page.write_text(new, encoding="utf-8")
        for shown, made in pictures.items():
            shown.write_bytes(made.read_bytes())
    else:
        for shown, made in pictures.items():
            assert shown.read_bytes() == made.read_bytes(), f"{shown.name} has changed"
        assert new == old, "the page shows something else; TILEWRIGHT_UPDATE_GOLDEN=1 corrects it"


def test_links_lead_somewhere():
    missing = []
    for page in (*PAGES, *OTHERS):
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))  # code may index what it calls
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            if not target.startswith("http") and not (page.parent / target).exists():
                missing.append(f"{page.name}: {target}")
    assert not missing


def test_names_in_pages_are_there_at_once():
    """Before anything was compiled, which loads modules as a side effect."""
    import tilewright as tw

    for page in PAGES:
        code = "".join(
            body for language, body in BLOCK.findall(page.read_text(encoding="utf-8")) if language == "python"
        )
        attributes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Attribute)]
        used = {n.attr for n in attributes if isinstance(n.value, ast.Name) and n.value.id == "tw"}
        missing = used - set(tw.__all__)
        assert not missing, f"{page.name} uses tw.{', tw.'.join(missing)}"


def test_modules_of_the_package_load_on_first_use():
    code = "import tilewright as tw; print(tw.errors.UsageError.exit_code, callable(tw.te.compute), callable(tw.tune))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "True", "True"]


def test_commands_of_pages_name_the_environment():
    """`pytest` alone is whatever the reader's shell finds."""
    for page in (*PAGES, *OTHERS):
        assert not re.findall(r"(?<![\w/.-])pytest (?:-\w|tests)", page.read_text(encoding="utf-8")), page.name


def test_the_sample_of_an_operator_passes():
    """What add_an_operator.md says to put into a table of samples is right for every float type."""
    page = (REPOSITORY / "docs" / "add_an_operator.md").read_text(encoding="utf-8")
    code = BLOCK.search(page).group(2)
    line = re.search(r'^ {4}"snake": (.*),$', page, re.M).group(1)
    tests = REPOSITORY / "tests" / "ops" / "test_operators.py"
    code += (
        f"\nimport runpy\ntests = runpy.run_path({str(tests)!r})\nX = tests['X']\n"
        f"for xs, attributes in {line}:\n"
        "    tests['test_type_reference_and_lowering_agree']('snake', xs, attributes)\n"
        "    for dtype in ('f64', 'f16', 'bf16'):\n"
        "        tests['test_other_float_types']('snake', xs, attributes, dtype)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)


# ---- what runs in the page's process -------------------------------------------------------------------------------


def run_page(text: str) -> str:
    """The page with what its blocks really give."""
    import tilewright as tw

    namespace: dict = {"__name__": "__main__", **prepare()}
    printed: str | None = None
    pieces, at = [], 0
    tw.compile = show_for_machine(tw.compile)  # type: ignore[assignment]
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        line = text.count("\n", 0, block.start()) + 1
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * line + body, "page", "exec"), namespace)
            printed = out.getvalue()
        elif language == "console":
            body = numbers_apart(body, run_console(body))
        elif language in SHOWN and printed:
            body, printed = tidy(printed), None
        pieces += [text[at : block.start()], f"```{language}\n{body}```"]
        at = block.end()
    return "".join([*pieces, text[at:]])


def show_for_machine(original):
    """`tw.compile` that shows the levels after scheduling for `MACHINE`."""
    import tilewright.targets.cpu as cpu
    from tilewright.targets.cpu.description import CpuDescription

    describe = cpu.CpuTarget.describe

    def wrapped(source, **options):
        shown = options.get("stop_after") in ("schedule", "emit") and options.get("target", "cpu") == "cpu"
        cpu.CpuTarget.describe = (lambda self: CpuDescription(**MACHINE)) if shown else describe
        try:
            return original(source, **options)
        finally:
            cpu.CpuTarget.describe = describe

    return wrapped


def run_console(body: str) -> str:
    import shlex

    from tilewright.cli import main

    lines = []
    for line in body.splitlines():
        if not line.startswith("$ "):
            continue
        words = shlex.split(line[2:])
        assert words[0] == "tilewright", line
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(words[1:])
        lines.append(f"{line}\n{tidy(out.getvalue())}" + (f"(exit code {code})\n" if code else ""))
    return "".join(lines)


def numbers_apart(shown: str, real: str) -> str:
    """`real`; or `shown`, where they differ only by rounding in printed numbers."""
    number = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?|-?\d+e[-+]\d+")
    if number.sub("#", shown) != number.sub("#", real):
        return real
    pairs = zip(number.findall(shown), number.findall(real), strict=True)
    return shown if all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-5) for a, b in pairs) else real


def prepare() -> dict:
    """What the README takes for granted: a model in the folder, and an array that fits it."""
    import numpy as np
    import onnx

    model = onnx.load(REPOSITORY / "examples" / "digits" / "digits.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, "model.onnx")
    return {"array": np.zeros((1, 1, 8, 8), np.float32)}


def tidy(printed: str) -> str:
    """Without blanks at the ends of lines and empty lines at the end."""
    return "\n".join(line.rstrip() for line in printed.rstrip().split("\n")).lstrip("\n") + "\n" if printed else ""


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    result = run_page(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write("\n" + json.dumps(result))
