"""A process that forks others: what they have and have not of it, and how all of them end."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from support.forking import ended

from tilewright.support import child_processes, fork_server, persistent_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are safe on Linux")
MODULE = "support.fork_worker"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def log():
    with tempfile.TemporaryFile() as file:
        yield file


@pytest.fixture
def server():
    return fork_server.start(MODULE, "this")


def ask(child, line: str) -> str:
    child.stdin.write(f"{line}\n".encode())
    child.stdin.flush()
    return child.stdout.readline().decode().strip()


def test_children_have_what_was_prepared_and_the_surroundings_of_who_asks(server, log, monkeypatch, tmp_path):
    first = server.fork(log)
    monkeypatch.setenv("SOME_VARIABLE", "1")
    monkeypatch.chdir(tmp_path)
    second = server.fork(log)
    known = "print(*prepared[0], os.environ.get('SOME_VARIABLE'), os.getcwd(), os.getppid())"
    what, prepared_in, variable, folder, parent = ask(second, known).split()
    assert (what, prepared_in, variable, folder) == ("this", parent, "1", os.path.realpath(tmp_path))
    assert ask(first, known).split()[:3] == ["this", parent, "None"]
    assert {first.pid, second.pid, int(parent)}.isdisjoint({os.getpid()}) and first.pid != second.pid
    first.stdin.close()
    assert first.wait(60) == 0 and second.poll() is None


def test_children_have_no_files_but_their_own(server, log):
    """Another one's pipes above all: it would not see their end."""
    server.fork(log)
    files = ask(server.fork(log), "print(len([f for f in os.listdir('/proc/self/fd')]))")
    assert int(files) == 5  # stdin, stdout, the log, the lifeline, the folder that is listed


def test_a_crash_ends_the_child_alone(server, log):
    first, second = server.fork(log), server.fork(log)
    ask(first, "os.abort()")
    assert first.wait(60) == -signal.SIGABRT and second.poll() is None
    ask(first := server.fork(log), "raise ValueError('what happened')")
    assert first.wait(60) == 1
    log.seek(0)
    assert b"ValueError: what happened" in log.read()
    second.kill()
    assert second.wait(60) == -signal.SIGKILL and server.alive


def test_none_is_left_when_the_server_dies(server, log):
    child = server.fork(log)
    os.kill(int(ask(child, "print(os.getppid())")), signal.SIGKILL)
    assert child.poll() is not None or ended(child.pid)
    with pytest.raises(OSError):
        while True:  # the socket may take a question yet
            server.fork(log)
    assert not server.alive and child.wait(60) == -signal.SIGKILL and ended(child.pid)


def test_an_interrupted_question_spoils_no_other(server, log, monkeypatch):
    class Interrupted(fork_server.struct.Struct):
        def unpack(self, data):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fork_server, "_NUMBERS", Interrupted("<qq"))
        server.fork(log)
    assert not server.alive


RUN = "from tilewright.support import persistent_process as k; k.serve(lambda r: (g := {}, exec(r, g))[0]['found'])"
FORK = f"""
import os, tempfile, threading
from tilewright.support import fork_server
server = fork_server.start({MODULE!r}, "")
child = server.fork(tempfile.TemporaryFile())
child.stdin.write(b"print(prepared[0][1], os.getppid())\\n")
child.stdin.flush()
found = os.getpid(), *map(int, child.stdout.readline().split()), child.pid
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_of_ours_forks_its_server_while_it_has_one_thread(threads):
    more = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    try:
        pid, prepared_in, server, _ = persistent_process.ask(RUN, f"{more if threads > 1 else ''}{FORK}")
        assert server != pid and prepared_in == (pid if threads == 1 else server)
    finally:
        persistent_process.close()


@pytest.mark.parametrize("work", ["import time; time.sleep(3600)", "import re; re.match('(a+)+$', 'a' * 99 + 'b')"])
def test_all_end_when_who_asked_is_killed(work):
    """Whatever they do then: waiting, or holding the GIL."""
    code = f"""
    {textwrap.indent(FORK, "    ").strip()}
    child.stdin.write({f"print(flush=True); {work}"!r}.encode() + b"\\n")
    child.stdin.flush()
    child.stdout.readline()
    print(found[2], found[3], flush=True)
    os.kill(os.getpid(), 9)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    server, child = map(int, run.stdout.split())
    assert not run.stderr and ended(server) and ended(child)


def test_other_systems_have_none(monkeypatch):
    monkeypatch.setattr(child_processes, "_entered", True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert fork_server.start(MODULE, "") is None and not child_processes.can_fork()
