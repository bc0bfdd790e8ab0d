"""The pinned machines, and taking this machine for another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.machines import MACHINES, here_with_caches_of, runs_here

import tilewright as tw
from tilewright.support.errors import UsageError
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu.description import described, host

SOFTMAX = """func.func @main(%x: tensor<256x512xf32>, %w: tensor<512x96xf32>) -> tensor<256x96xf32> {
  %0 = "tw.softmax"(%x) : (tensor<256x512xf32>) -> tensor<256x512xf32>
  %1 = "tw.matmul"(%0, %w) : (tensor<256x512xf32>, tensor<512x96xf32>) -> tensor<256x96xf32>
  return %1 : tensor<256x96xf32>
}"""


def test_what_they_are():
    assert [MACHINES[n].vector_bytes for n in ("avx2", "zen4", "zen5")] == [32, 64, 64]
    assert [MACHINES[n].cpu for n in ("avx2", "zen4", "zen5")] == ["x86-64-v3", "x86-64-v4", "x86-64-v4"]
    assert MACHINES["avx2"].missing_on(MACHINES["zen4"]) == ()


@pytest.mark.parametrize("name", MACHINES)
def test_code_for_each_can_be_made_anywhere(name, monkeypatch):
    machine = MACHINES[name]
    monkeypatch.setattr(CpuTarget, "describe", lambda self: machine)
    nests = tw.compile(SOFTMAX, threads=1, stop_after="schedule", cache=False).text()
    assert f"lanes={machine.vector_bytes // 4}" in nests
    if runs_here(machine):
        assert tw.compile(SOFTMAX, threads=1, stop_after="assemble", cache=False).text()


def test_a_file_says_what_this_machine_is_taken_for(tmp_path):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"l1_bytes": 1 << 15, "cores": 3, "features": ["avx2", "fma", "no-such-feature"]}))
    found = described(path, MACHINES["zen5"])
    assert (found.l1_bytes, found.l2_bytes, found.cores) == (1 << 15, 1 << 20, 3)
    assert found.features == ("fma", "avx2") and found.vector_bytes == 32
    path.write_text("{}")
    assert described(path, MACHINES["zen5"]) == MACHINES["zen5"]
    for text, words in (('{"l1": 3}', "unknown field l1"), ('{"cores": 0}', "positive"), ("[]", ""), ("{", "")):
        path.write_text(text)
        with pytest.raises(UsageError, match=f"cannot read a machine from .*{words}"):
            described(path, MACHINES["zen5"])


def test_the_variable_reaches_every_process(tmp_path):
    path = tmp_path / "m.json"
    here = here_with_caches_of("avx2")
    narrow = [f for f in here.features if not f.startswith(("avx512", "amx"))]
    path.write_text(json.dumps({"features": narrow, "l1_bytes": 12345, "cores": 3}))
    code = "from tilewright.targets.cpu.description import host; h = host(); print(h.l1_bytes, h.cores, h.vector_bytes)"
    environment = {**os.environ, "TILEWRIGHT_MACHINE": str(path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["12345", "3", str(min(host().vector_bytes, 32))]
