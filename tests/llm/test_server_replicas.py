"""Copies of the server on a Ray cluster of two nodes, which are processes on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw

httpx = pytest.importorskip("httpx", reason="needs httpx: tilewright[llm]")
pytest.importorskip("starlette", reason="needs starlette: tilewright[llm]")
pytest.importorskip("ray.serve", reason="needs Ray Serve: tilewright[ray]")

import ray  # noqa: E402


@pytest.fixture
def cluster():
    """The address of a cluster whose nodes have one processor each: a copy does not fit beside another."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, connect=True, head_node_args=head)
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made.address
    ray.shutdown()
    made.shutdown()


def test_two_copies_on_two_nodes(cluster, tmp_path):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "m", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    tw.compile(model, threads=1).save(tmp_path / "m.tw")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tilewright", "serve", f"relu={tmp_path / 'm.tw'}", "--port", str(port)]
    command += ["--replicas", "2", "--api-key", "k", "--threads", "1"]
    root = str(Path(tw.__file__).resolve().parents[1])
    environment = {**os.environ, "RAY_ADDRESS": cluster, "PYTHONPATH": root, "RAY_SERVE_LOG_TO_STDERR": "0"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(line for line in process.stderr if "serving relu" in line or "rror" in line)
            assert "serving relu on" in said
            base = f"http://127.0.0.1:{port}"
            assert httpx.get(base + "/v2/models/relu", timeout=30).status_code == 401
            with httpx.Client(base_url=base, headers={"authorization": "Bearer k"}, timeout=30) as client:
                body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1, 2, -3, 4]}]}
                for _ in range(20):
                    answer = client.post("/v2/models/relu/infer", json=body)
                    assert answer.status_code == 200
                    np.testing.assert_array_equal(answer.json()["outputs"][0]["data"], [0, 2, 0, 4])
            assert processors_left(0)  # each node has a copy
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0 and processors_left(2)
            with pytest.raises(httpx.TransportError):
                httpx.get(base + "/health", timeout=2)
        finally:
            process.kill()


def processors_left(wanted: int) -> bool:
    """Whether so many are free on the cluster, soon."""
    for _ in range(100):
        if ray.available_resources().get("CPU", 0) == wanted:
            return True
        time.sleep(0.1)
    return False
