"""Processes that stay for the next request."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from support.forking import ended

from tilewright.support import persistent_process
from tilewright.support.persistent_process import Ended, ask

ROOT = Path(__file__).parents[3]
SERVE = "import os, time; from tilewright.support import persistent_process as k; "
#: runs the request, and answers with the process and what the request made of `found`
RUN = SERVE + "k.serve(lambda r: (os.getpid(), (g := {'k': k, 'os': os}, exec(r, g))[0].get('found')))"


@pytest.fixture(autouse=True)
def none_left():
    yield
    persistent_process.close()


def test_one_process_answers_all_with_the_environment_of_each(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_VARIABLE", "1")
    first, found = ask(RUN, "found = os.environ['SOME_VARIABLE']")
    assert found == "1" and first != os.getpid()
    monkeypatch.delenv("SOME_VARIABLE")
    monkeypatch.setenv("ANOTHER", "2")
    monkeypatch.chdir(tmp_path)
    assert ask(RUN, "found = 'SOME_VARIABLE' in os.environ, os.environ['ANOTHER'], os.getcwd()") == (
        first, (False, "2", os.path.realpath(tmp_path)),
    )  # fmt: skip
    assert ask(RUN, "print('not in the way')") == (first, None)


def test_it_is_told_of_another_environment_before_it_answers(monkeypatch):
    call = SERVE + "told = []; k.serve(lambda r: list(told), told.append)"
    assert ask(call, None) == []
    assert ask(call, None) == [False]
    monkeypatch.setenv("SOME_VARIABLE", "1")
    assert ask(call, None) == [False, False, True]


def test_a_crash_is_reported_and_the_next_one_works():
    first, _ = ask(RUN, "")
    for _ in range(2):  # of one that was kept, and of a new one
        with pytest.raises(Ended) as e:
            ask(RUN, "os.abort()")
        assert e.value.code == -6 or os.name != "posix"
    assert ended(first) and ask(RUN, "")[0] != first


def test_one_that_ends_when_it_is_asked_is_replaced():
    """It was idle for too long just then."""
    first, _ = ask(RUN, "import tilewright.support.persistent_process as k; k._next = lambda: os._exit(0)")
    assert ask(RUN, "")[0] != first


def test_threads_have_processes_of_their_own_and_one_stays(tmp_path):
    wait = f"""
import time
open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w').close()
while len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.01)
"""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(ask(RUN, wait)[0])) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(found)) == 2
    (kept,) = (child.pid for child, _ in persistent_process._kept.values())
    (other,) = {*found} - {kept}
    assert ended(other) and ask(RUN, "")[0] == kept


@pytest.mark.parametrize("limit", ["k.IDLE = k.REST = 0.01", "k.BYTES = -1"])
def test_one_that_nobody_asks_or_that_is_large_ends(limit):
    pid, _ = ask(RUN, limit)
    assert ended(pid) and ask(RUN, "")[0] != pid


@pytest.mark.parametrize("what", ["started elsewhere", "a machine"])
def test_what_is_taken_over_at_the_start_starts_another(monkeypatch, tmp_path, what):
    first, _ = ask(RUN, "")
    if what == "a machine":
        monkeypatch.setenv("TILEWRIGHT_MACHINE", str(tmp_path / "machine.json"))
    else:
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert ask(RUN, "")[0] != first and ended(first)


def test_an_interrupted_one_ends(monkeypatch):
    first, _ = ask(RUN, "")

    def interrupted(stream):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(persistent_process, "receive", interrupted)
        ask(RUN, "import time; time.sleep(3600)")
    assert ended(first) and ask(RUN, "")[0] != first


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"], ids=["at its end", "killed"])
def test_it_ends_with_its_parent(end):
    code = f"""
    import os
    from tilewright.support.persistent_process import ask
    print(ask({RUN!r}, "")[0], flush=True)
    {end}
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not run.stderr and ended(int(run.stdout))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_its_own():
    first, _ = ask(RUN, "")
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if not persistent_process._kept and ask(RUN, "")[0] != first else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ask(RUN, "")[0] == first
