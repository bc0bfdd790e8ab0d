"""Hostile names, files, environments and clients end in one clear error."""

import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.cli import main
from tilewright.driver.tuning_database import VERSION, Database
from tilewright.support import options
from tilewright.support.errors import ModelError, UsageError
from tilewright.tune.wire import Server, TcpLink, key_from

ROOT = Path(__file__).parents[2]
KEY = key_from("a key of sixteen bytes or more")
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def model(name="relu", op="Relu", weight=None):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    nodes, weights = [helper.make_node(op, ["x"], ["y"], name=name)], []
    if weight is not None:
        nodes, weights = [helper.make_node("Add", ["x", "w"], ["y"])], [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


# ---- packages and files --------------------------------------------------------------------------------------------


def test_the_digest_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "m.tw"
    tw.compile(model(), threads=1).save(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for command in (["run", path], ["explain", path]):
        assert main([*map(str, command), "--sha256", digest]) == 0
        assert main([*map(str, command), "--sha256", "0" * 64]) == 7
        assert digest in capsys.readouterr().err
    onnx.save(model(), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--sha256", digest]) == 2


@posix
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("folder", "no regular file"),
        ("loop", "links form a loop"),
        ("hard link", "other names"),
        ("pipe", "no regular file"),
    ],
)
def test_external_data_that_is_no_file_of_its_own(tmp_path, kind, message):
    onnx.save(
        model(weight=np.ones(4, "f")), tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    data = tmp_path / "w"
    data.rename(tmp_path / "secret")
    if kind == "folder":
        data.mkdir()
    elif kind == "loop":
        data.symlink_to("v")
        (tmp_path / "v").symlink_to("w")
    elif kind == "pipe":
        os.mkfifo(data)
    else:
        os.link(tmp_path / "secret", data)
    with pytest.raises(ModelError, match=f"data of tensor 'w': .*({message}|symbolic links)"):
        tw.compile(tmp_path / "m.onnx", threads=1, cache=False)


def test_arrays_that_claim_to_be_huge(tmp_path, capsys):
    import io
    import zipfile

    onnx.save(model(), tmp_path / "m.onnx")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (1 << 44,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue())
    assert main(["run", str(tmp_path / "m.onnx"), "--input", str(tmp_path / "x.npz")]) == 5
    assert "cannot read arrays" in capsys.readouterr().err


# ---- names ---------------------------------------------------------------------------------------------------------


def test_names_cannot_command_the_terminal(tmp_path, capsys):
    onnx.save(model("evil\x1b[2J\x9b1m\u202e", "Nothing"), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx")]) == 4
    shown = capsys.readouterr().err
    assert "evil\\x1b[2J\\x9b1m\\u202e" in shown and "\x1b" not in shown
    onnx.save(model("fine\x1b[2J"), tmp_path / "m.onnx")
    assert main(["explain", str(tmp_path / "m.onnx"), "--threads", "1"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@posix
def test_file_names_that_are_not_text(tmp_path):
    path = os.fsdecode(os.fsencode(str(tmp_path)) + b"/m\xff.onnx")
    try:
        onnx.save(model(), path)
    except (OSError, UnicodeError):
        pytest.skip("the file system takes only text")
    run = tw.compile(path, threads=1, jobs=1)
    assert run(np.ones(4, "f"))[0].sum() == 4


# ---- environment ---------------------------------------------------------------------------------------------------


@posix
def test_a_user_without_name_and_home(monkeypatch):
    monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError("no home"))))
    for name in ("XDG_CACHE_HOME", "TILEWRIGHT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert options.get("TILEWRIGHT_CACHE").name == f"tilewright-{os.getuid()}"
    monkeypatch.setenv("TILEWRIGHT_CACHE", "~nobody_of_this_name/cache")
    with pytest.raises(UsageError, match="TILEWRIGHT_CACHE"):
        options.get("TILEWRIGHT_CACHE")


def test_too_many_threads(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_THREADS", "100000")
    with pytest.raises(UsageError, match="at most 1024"):
        tw.compile(model())
    with pytest.raises(UsageError, match="at most 1024"):
        tw.compile(model(), threads=100_000)


# ---- the runner ----------------------------------------------------------------------------------------------------


class Echo:
    def answer(self, request):
        return {"got": request}

    def close(self):
        pass


@pytest.fixture
def server():
    server = Server(Echo(), "127.0.0.1", 0, KEY)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join(60)
    assert not thread.is_alive()


def ask(server):
    link = TcpLink(":".join(map(str, server.address)), KEY)
    try:
        return link.ask({"x": 1})
    finally:
        link.close()


def test_silent_clients_delay_nobody(server):
    silent = [socket.create_connection(server.address) for _ in range(3 * Server.MOST)]
    try:
        silent[0].settimeout(60)
        while silent[0].recv(100):  # its greeting, and then the end: it made room, long before it would be late
            pass
        assert ask(server) == {"got": {"x": 1}}
    finally:
        for s in silent:
            s.close()


def test_a_runner_without_files_goes_on(server, monkeypatch):
    """accept fails with EMFILE while a process has too many files open."""
    assert ask(server) == {"got": {"x": 1}}
    real, left = server.listener, [3]

    class Listener:
        def accept(self):
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return real.accept()

        def __getattr__(self, name):
            return getattr(real, name)

    server.listener = Listener()
    assert ask(server) == {"got": {"x": 1}}  # the accept that was going on
    assert ask(server) == {"got": {"x": 1}}
    assert not left[0]


def test_help_says_that_packages_are_code():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tilewright", "run", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert "native code" in shown and "--sha256" in shown
    assert "native code" in tw.load.__doc__


@pytest.mark.parametrize("place", ["seconds", "threads"])
def test_a_tuning_database_of_huge_numbers(tmp_path, place):
    huge = {place: 10**400}
    entry = {
        "key": ["a", "b", [1]],
        "label": "x",
        "machine": ["cpu", "features", huge.get("threads", 1), "toolchain"],
        "result": [{}, "digest", "trace", huge.get("seconds", 1.0), 2.0],
    }
    with pytest.raises(UsageError):
        Database(tmp_path / "t.sqlite").import_({"tilewright-tuning": VERSION, "tasks": [entry]})
