"""Processes of our own: nothing of the current folder runs in them, and they end when who started them does."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.support import child_processes

ROOT = Path(__file__).parents[3]
HIJACK = "import os; open(os.path.join({folder!r}, 'hijacked'), 'a').write(__name__ + ' ')\n"
#: modules that our processes import; one that hides a real one breaks what imports it, unless it is not found
NAMES = (
    "pickle",
    "struct",
    "json",
    "tempfile",
    "numpy",
    "onnx",
    "torch_mlir",
    "llvmlite",
    "tilewright",
    "sitecustomize",
)


def hostile(folder: Path) -> Path:
    """A folder as a stranger's archive may be: a model, and files named like modules beside it."""
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(HIJACK.format(folder=str(folder)))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in "xy")
    w = numpy_helper.from_array(__import__("numpy").ones((8, 8), "f"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), folder / "m.onnx")
    return folder


def run(code: str, folder: Path, **environment: str) -> str:
    """Python code in a process that was started the usual way in `folder`, and whose own imports are harmless."""
    guarded = f"import sys; sys.path[:] = [p for p in sys.path if p]; {code}"
    variables = {
        **os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_CACHE": str(folder.parent / "cache"), **environment,
    }  # fmt: skip
    command = [sys.executable, "-c", f"{guarded}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", [[], [""]], ids=["as given", "with an empty entry"])
def test_a_compilation_runs_no_file_of_the_current_folder(tmp_path, path):
    """The process that compiles the model, and those that compile its kernels."""
    folder = hostile(tmp_path / "stranger")
    code = f"import tilewright; sys.path[:0] = {path}; tilewright.compile('m.onnx', jobs=2, threads=1)"
    if path:  # what the parent has imported by then is its own
        code = f"import numpy, onnx, tilewright.driver.service, tilewright.driver.out_of_process; {code}"
    run(code, folder)
    assert not (folder / "hijacked").exists(), (folder / "hijacked").read_text()


def test_the_tuner_runs_no_file_of_the_current_folder(tmp_path):
    folder = hostile(tmp_path / "stranger")
    code = """
    from tilewright.tune.measure import RunnerProcess
    from tilewright.tune.runner import Request, Subject
    answer = RunnerProcess().ask(Request(Subject((), (), frozenset(), "cpu", 1), {}), 120)
    print(answer.failed)
    """
    assert "Error" in run(f"exec({textwrap.dedent(code)!r})", folder)  # an answer: the process runs
    assert not (folder / "hijacked").exists(), (folder / "hijacked").read_text()


def test_the_environment_does_not_add_to_the_path(tmp_path):
    folder = hostile(tmp_path / "stranger")
    code = """
    import subprocess, os
    from tilewright.support import child_processes
    os.environ["PYTHONPATH"] = os.getcwd()
    child = child_processes.start("print(sys.path)", stdout=subprocess.PIPE)
    print(child.communicate()[0].decode())
    """
    assert str(folder) not in run(f"exec({textwrap.dedent(code)!r})", folder)
    assert not (folder / "hijacked").exists()


def test_which_entries_of_the_path_are_handed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    here, other = str(tmp_path), str(tmp_path / "sub")
    monkeypatch.setattr(sys, "path", ["", ".", here, "sub", other, *sys.path])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = child_processes.import_path()
    assert other in found and not {"", ".", here, "sub"} & set(found)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", here]))
    assert here in child_processes.import_path()
    assert not {"", "."} & set(child_processes.import_path())


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(
    "work",
    ["import time; time.sleep(3600)", "import re; re.match('(a+)+$', 'a' * 99 + 'b')"],
    ids=["waiting", "holding the GIL"],
)
def test_a_child_ends_when_its_parent_is_killed(tmp_path, work):
    if "re" in work.split() and sys.platform != "linux":
        pytest.skip("needs signals of pipes")
    code = f"""
    import subprocess, time
    from tilewright.support import child_processes
    child = child_processes.start({"print(flush=True); " + work!r}, stdout=subprocess.PIPE)
    child.stdout.read(1)
    print(child.pid, flush=True)
    time.sleep(3600)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    child = int(parent.stdout.readline())
    parent.stdout.close()
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 120
    try:
        while alive(child) and time.monotonic() < end:
            time.sleep(0.01)
        assert not alive(child)
    finally:
        if alive(child):
            os.kill(child, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_keep_children_alive():
    child = child_processes.start("import time; time.sleep(3600)")
    (line,) = [x for x in child_processes._lifelines if x is child.lifeline]
    pid = os.fork()
    if not pid:
        os._exit(0 if line.fd < 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert child.poll() is None
    line.close()
    assert child.wait(120) != 0
