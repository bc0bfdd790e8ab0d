"""What a fork server of the tests has prepared, and what its children do: they run the lines that they read, and answer
with the line that they print."""

import os
import sys

PREPARED = []


def prepare(what):
    PREPARED.append((what, os.getpid()))


def work():
    for line in sys.stdin:
        exec(line, {"prepared": PREPARED, "os": os, "sys": sys})
        sys.stdout.flush()
