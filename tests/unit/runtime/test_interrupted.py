"""Exceptions that come at any time, from Ctrl-C or a signal's handler: calls still work, and the process ends."""

import signal
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no interval timers")

SETUP = """
import random, signal, sys, threading
import numpy as np
from tilewright.runtime.executable import MAX_CONTEXTS
from tilewright.runtime.load import load

class Interrupt(Exception):
    pass

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
folder = sys.argv[1]
x = np.load(folder + "/x.npy")
rng = random.Random(int(sys.argv[2]))

def interrupted(run, seconds):
    # whether the exception came into a call; it may come at any point of this function, too
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            run(x)
    except Interrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""

MANY = """
run = load(folder + "/m.tw", threads=3)
wanted = load(folder + "/m.tw", threads=1)(x)
for i in range(2000):
    try:
        interrupted(run, rng.uniform(2e-5, 3e-4))
    except Interrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
right = []

def work():
    for _ in range(20):
        right.append(all(map(np.array_equal, run(x), wanted)))

threads = [threading.Thread(target=work) for _ in range(MAX_CONTEXTS + 4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert all(right) and len(right) == 20 * len(threads)
print("works")
"""

FIRST = """
for i in range(60):
    try:
        run = load(folder + "/m.tw", threads=4)
        interrupted(run, rng.uniform(2e-5, 1.5e-3))
    except Interrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert len(run(x)) == 2
print("works")
"""

STORM = """
for i in range(20):
    run = load(folder + "/m.tw", threads=4)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
        for _ in range(200):
            try:
                run(x)
                if rng.random() < 0.1:
                    run.close()
            except Interrupt:
                pass
    except Interrupt:
        pass
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            break
        except Interrupt:
            pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert len(run(x)) == 2
print("works")
"""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("code", [MANY, FIRST, STORM], ids=["many", "first_runs", "storm"])
def test_interrupts(small_package, tmp_path, code, seed):
    small_package.save(tmp_path / "m.tw")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    command = [sys.executable, "-c", SETUP + code, str(tmp_path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr
