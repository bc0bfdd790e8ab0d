"""What is loaded at first use is loaded once and whole, when many threads of a new process ask first."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

FIRST = """
import sys, threading
import numpy as np
from onnx import helper, numpy_helper
import tilewright as tw
{more}

def model(k):
    vi = lambda n: helper.make_tensor_value_info(n, 1, [3, k])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    w = numpy_helper.from_array(np.eye(k, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [vi("x")], [vi("y")], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

def onnx(i, **options):
    run = tw.compile(model(8 + i % 3), threads=1, cache=False, **options)
    x = np.ones((3, 8 + i % 3), np.float32)
    np.testing.assert_allclose(run(x)[0], 1 / (8 + i % 3), rtol=1e-5)
    return run, x

def explain(i): onnx(i)[0].explain()
def c(i): tw.compile(model(8), target="c", threads=1).package.objects
def profile(i): run, x = onnx(i); run.profile([x], repeats=1)
def mlir(i):
    text = "func.func @main(%a: T) -> T {{ %0 = stablehlo.abs %a : T return %0 : T }}".replace("T", "tensor<4xf32>")
    assert (tw.compile(text, threads=1)(-np.ones(4, np.float32))[0] == 1).all()
def te(i):
    x = tw.te.placeholder((4, 4), "x")
    tw.te.kernel(tw.te.compute((4, 4), lambda i, j: x[i, j] * 2.0, "y"), name="twice")
def opt(i): tw.Graph; from tilewright.graph import passes; passes.parse_pipeline("fold,layout")
def find(i): tw.compile(model(8), target="opencl", threads=1, stop_after="schedule")
{torch}

DO = [{kinds}]
bad, gate = [], threading.Barrier(16)
def go(i):
    gate.wait()
    try: DO[i % len(DO)](i)
    except BaseException as e:
        import traceback; bad.append(traceback.format_exc())
threads = [threading.Thread(target=go, args=(i,)) for i in range(16)]
for t in threads: t.start()
for t in threads: t.join()
print(f"{{len(bad)}} of 16 failed", *bad[:1])
sys.exit(len(bad) > 0)
"""
TORCH = """
class Twice(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def module(i):
    run = tw.compile(Twice(), (torch.ones(4),), threads=1)
    assert (run(torch.ones(4)) == 2).all()
"""


@pytest.mark.parametrize("kinds", ["onnx, explain, c, profile, mlir, te, opt, find", "module, onnx, c"])
def test_sixteen_threads(kinds, tmp_path, monkeypatch):
    if "module" in kinds:
        pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    torch = TORCH if "module" in kinds else ""
    text = FIRST.format(more="import torch" if torch else "", torch=torch, kinds=kinds)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def _imports(body):
    """The import statements that run when a module does."""
    for n in body:
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            yield n
        elif isinstance(n, ast.If):
            yield from _imports(n.orelse if "TYPE_CHECKING" in ast.dump(n.test) else [*n.body, *n.orelse])
        elif isinstance(n, (ast.Try, ast.With, ast.ClassDef)):
            yield from _imports(n.body)


def _needs(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = {package}
    for n in _imports(ast.parse(path.read_text()).body):
        if isinstance(n, ast.Import):
            found |= {a.name for a in n.names}
            continue
        above = package.split(".")[: len(package.split(".")) - n.level + 1] if n.level else []
        base = ".".join([*above, *([n.module] if n.module else [])])
        found |= {base, *(f"{base}.{a.name}" for a in n.names)}
    parents = {".".join(f.split(".")[:i]) for f in found for i in range(2, len(f.split(".")))}
    return {f for f in found | parents if f in known} - {name, "tilewright"}


def test_modules_import_each_other_in_no_circle():
    """Threads that import two modules of a circle at once find one of them half made. A package and its own modules are
    no such circle: whoever wants one of them waits for the package first."""
    root = Path(tilewright.__file__).parent
    known = {
        ".".join(p.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): p
        for p in root.rglob("*.py")
    }
    needs = {n: _needs(n, p, known) for n, p in known.items()}
    reached = {n: set(m) for n, m in needs.items()}
    changed = True
    while changed:
        changed = False
        for found in reached.values():
            more = set().union(*(reached[f] for f in found)) - found if found else set()
            found |= more
            changed |= bool(more)
    for n, found in reached.items():
        circle = {n, *(f for f in found if n in reached[f])}
        outer = min(circle, key=len)
        assert all(m == outer or m.startswith(outer + ".") for m in circle), sorted(circle)
