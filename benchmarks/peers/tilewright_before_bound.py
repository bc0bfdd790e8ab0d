"""`tilewright_bound.py` with Tilewright as another checkout has it (see tilewright_before.py)."""

import os
import sys

from worker import load_peer

sys.path.insert(0, os.environ["BENCH_BEFORE"])
os.environ["PYTHONPATH"] = os.environ["BENCH_BEFORE"]  # for its own processes
bound = load_peer("tilewright_bound")
load = bound.load


def version() -> str:
    return f"{bound.version()} before"
