"""Measuring elsewhere: the authenticated protocol, several runners at once, lost runners, Ray."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tilewright.driver.tuning_database import Database
from tilewright.lang import te
from tilewright.support.errors import CompileError, UsageError
from tilewright.support.options import Options
from tilewright.targets.base import find
from tilewright.tune.measure import Died, NoRunners
from tilewright.tune.remote_runners import Lost, RunnerHost, RunnerPool, connect
from tilewright.tune.space import Space
from tilewright.tune.tasks import task_of
from tilewright.tune.wire import HELLO, NONCE, SEAL, Channel, Refused, Server, TcpLink, connect_to, key_from

ROOT = Path(__file__).resolve().parents[3]
KEY = b"a key that both sides have"


def small(m: int = 12, n: int = 32, k: int = 16):
    a, b = te.placeholder((m, k), "a"), te.placeholder((k, n), "b", constant=True)
    r = te.reduce_axis(k, "r")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"))


class FakeHost(RunnerHost):
    """Answers without measuring: half the default's time for all."""

    def __init__(self, slow: float = 0.0) -> None:
        super().__init__()
        self.slow, self.asked = slow, []

    def answer(self, request):
        if request.get("do") == "about":
            return super().answer(request)
        self.asked.append(request)
        time.sleep(self.slow)
        if request["do"] == "contest":
            return {"contest": [[0.5] * 5, [0.5] * 5, 1e-3, 2e-3, 0.0, 0.0]}
        return {"outcomes": [["ok", 1e-3, 0.5, ""] for _ in request["candidates"]]}


@contextlib.contextmanager
def serving(host=None, key=KEY):
    server = Server(host or FakeHost(), "127.0.0.1", 0, key)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.address[1]}", server
    finally:
        server.close()
        thread.join(5)


# ---- the protocol --------------------------------------------------------------------------------------------------


def test_a_runner_answers_who_has_the_key():
    with serving() as (address, _):
        link = connect_to(address, KEY)
        assert link.ask({"do": "about"})["target"] == "cpu"
        assert link.ask({"do": "about"})["target"] == "cpu"
        link.close()
        with pytest.raises(UsageError, match="the key is wrong"):
            connect_to(address, KEY + b"x")


def test_keys_and_addresses_are_checked(monkeypatch):
    monkeypatch.delenv("TILEWRIGHT_RUNNER_KEY", raising=False)
    with pytest.raises(UsageError, match="a runner's key has 0 bytes, it must have 16 or more"):
        key_from(None)
    with pytest.raises(UsageError, match="'nowhere' is no address of a runner"):
        connect_to("nowhere", KEY)
    with pytest.raises(UsageError, match="cannot be used"):
        connect_to("127.0.0.1:1", KEY)
    with pytest.raises(UsageError, match="there is no runner"):
        RunnerPool([], 1)


def test_a_false_runner_is_found_out():
    """Who pretends to be a runner cannot prove that it has the key."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend():
        connection, _ = listener.accept()
        with connection:
            connection.sendall(HELLO + b"0" * NONCE + struct.pack("<I", SEAL + 4) + b"0" * SEAL + b"null")
            connection.recv(1 << 16)

    thread = threading.Thread(target=pretend, daemon=True)
    thread.start()
    with pytest.raises(UsageError, match="the runner does not have the key"):
        connect_to(f"127.0.0.1:{listener.getsockname()[1]}", KEY)
    thread.join(5)
    listener.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HELLO.replace(b"2", b"1") + b"0" * NONCE,
        HELLO + b"0" * NONCE + struct.pack("<I", 1 << 31),
        HELLO + b"0" * NONCE + struct.pack("<I", 5) + b"[1,2]",
        HELLO + b"0" * NONCE + struct.pack("<I", SEAL + 4) + b"0" * SEAL + b"null",
        HELLO + b"0" * NONCE,
        b"",
    ],
)
def test_who_does_not_know_the_protocol_is_refused(data):
    with serving() as (address, server):
        with socket.create_connection(server.address, timeout=5) as stranger:
            stranger.settimeout(5)
            stranger.recv(1 << 16)  # the greeting
            stranger.sendall(data)
            with contextlib.suppress(OSError):  # it may be gone already
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1 << 16) == b""
        assert connect_to(address, KEY).ask({"do": "about"})["target"] == "cpu"
        assert server.runner.asked == []


def _pair() -> tuple[Channel, Channel, socket.socket, socket.socket]:
    a, b = socket.socketpair()
    made = {}
    thread = threading.Thread(target=lambda: made.setdefault("runner", Channel(a, KEY, serves=True)))
    thread.start()
    tuner = Channel(b, KEY, serves=False)
    thread.join(5)
    return made["runner"], tuner, a, b


def test_changed_and_repeated_messages_are_refused():
    runner, tuner, a, b = _pair()
    tuner.send({"n": 1})
    assert runner.receive() == {"n": 1}
    text = json.dumps({"n": 2}).encode()
    frame = tuner._seal(b"tuner", tuner.sent, text) + text
    b.sendall(struct.pack("<I", len(frame)) + frame)
    assert runner.receive() == {"n": 2}
    b.sendall(struct.pack("<I", len(frame)) + frame)  # again
    with pytest.raises(Refused, match="not authentic"):
        runner.receive()
    runner, tuner, a, b = _pair()
    changed = bytearray(tuner._seal(b"tuner", tuner.sent, text) + text)
    changed[-2] ^= 1
    b.sendall(struct.pack("<I", len(changed)) + bytes(changed))
    with pytest.raises(Refused, match="not authentic"):
        runner.receive()
    a.close()
    b.close()


def test_a_recorded_handshake_opens_nothing():
    """What a tuner sent on one connection is refused on another, and so is what the runner itself said."""
    a, b = socket.socketpair()
    sent = bytearray()

    class Recorder:
        def sendall(self, data):
            sent.extend(data)
            b.sendall(data)

        def __getattr__(self, name):
            return getattr(b, name)

    thread = threading.Thread(target=lambda: Channel(a, KEY, serves=True))
    thread.start()
    Channel(Recorder(), KEY, serves=False)
    thread.join(5)
    with serving() as (_, server):
        for echo in (False, True):
            with socket.create_connection(server.address, timeout=5) as stranger:
                said = stranger.recv(len(HELLO) + NONCE, socket.MSG_WAITALL)
                stranger.sendall(said + bytes(sent[len(said) :]) if echo else bytes(sent))
                with contextlib.suppress(OSError):
                    assert stranger.recv(1 << 16) == b""
        assert server.runner.asked == []
    a.close()
    b.close()


def test_damaged_requests_get_an_answer():
    host = RunnerHost()
    for request in (None, [], {"do": "measure"}, {"do": "contest", "subject": 1}, {"do": "measure", "subject": {}}):
        assert "error" in host.answer(request)


# ---- fleets --------------------------------------------------------------------------------------------------------


def test_a_runner_builds_and_measures(tmp_path):
    """The whole way: a runner as a process of its own, its answers as those of this machine."""
    with runner_process(tmp_path) as (address, _):
        fleet = connect([address], 1, key=KEY)
        kernel = small()
        space = Space(kernel, fleet.description)
        other = next(c for c in space.list() if c.digest != space.default.digest)
        subject = task_of(kernel).subject("cpu", 1)
        (outcome,) = fleet.measure(subject, space.default, [other])
        assert outcome.status == "ok" and outcome.candidate is other and outcome.ratio > 0
        contest = fleet.contest(subject, space.default, space.default, other)
        assert len(contest.against_default) == 5 and contest.error < 1
        target = find("cpu")
        assert fleet.machine.features == target.tuning().measured_on(target.describe())[0]
        fleet.close()
        with pytest.raises(NoRunners, match="the connections to the runners are closed"):
            fleet.measure(subject, space.default, [other])


@contextlib.contextmanager
def runner_process(folder: Path, name: str = "a"):
    (folder / "key").write_bytes(KEY)
    log = folder / f"runner_{name}.log"
    command = [sys.executable, "-m", "tilewright", "runner", "--listen", "127.0.0.1:0", "--key-file", folder / "key"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_JOBS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, stderr=out, stdout=out, env=environment)
    try:
        end = time.monotonic() + 60
        while "listening on" not in log.read_text():
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield log.read_text().split("listening on ")[1].split()[0], process
    finally:
        process.kill()
        process.wait()


def tuned_with(fleet: RunnerPool, path: Path, trials: int):
    pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
    from tilewright.tune.tuner import Tuner

    kernels = [small(m) for m in (12, 20, 28)]
    tuner = Tuner([task_of(k) for k in kernels], Options(threads=1, jobs=1), None, Database(path), meter=fleet)
    report = tuner.run(trials)
    assert report.trials == trials == sum(len(tuner.database.measurements(n)) for n in tuner.numbers)
    return report


def test_several_runners_work_at_the_same_time(tmp_path):
    hosts = [FakeHost(0.15), FakeHost(0.15)]
    with serving(hosts[0]) as (one, _), serving(hosts[1]) as (two, _):
        report = tuned_with(connect([one, two], 1, key=KEY), tmp_path / "t.sqlite", 64)
    assert all(len(s.asked) >= 3 for s in hosts)
    assert any(t.ratio == 0.5 for t in report.tasks)


def test_the_work_of_a_lost_runner_is_redone(tmp_path):
    class Dies(FakeHost):
        def answer(self, request):
            if request["do"] == "measure" and self.asked:
                server_a.close()  # no new connections either
                raise ConnectionResetError("its power went")  # the connection ends without an answer
            return super().answer(request)

    with serving(Dies()) as (one, server_a), serving(FakeHost()) as (two, _):
        fleet = connect([one, two], 1, key=KEY)
        tuned_with(fleet, tmp_path / "t.sqlite", 48)
        assert fleet.workers == 1 and len(fleet.lost) == 1
        assert one in fleet.lost[0]


def test_without_a_runner_left_the_search_ends_with_an_error(tmp_path):
    class Gone:
        name = "gone"

        def __init__(self):
            self.host = FakeHost()

        def ask(self, request):
            if request["do"] == "about":
                return self.host.answer(request)
            raise Lost("the cable")

        def revive(self):
            raise Lost("still the cable")

        def close(self):
            pass

    with pytest.raises(NoRunners, match="all runners are lost: gone: the cable; then still the cable"):
        tuned_with(RunnerPool([Gone()], 1), tmp_path / "t.sqlite", 8)


def test_a_request_that_loses_every_runner_is_given_up():
    class Fragile:
        name = "fragile"

        def ask(self, request):
            if request["do"] == "about":
                return FakeHost().answer(request)
            raise Lost("down")

        def revive(self):
            pass

        def close(self):
            pass

    kernel = small()
    fleet = RunnerPool([Fragile()], 1)
    space = Space(kernel, fleet.description)
    outcomes = fleet.measure(task_of(kernel).subject("cpu", 1), space.default, [space.default])
    assert [o.status for o in outcomes] == ["crash"]
    with pytest.raises(Died):
        fleet.contest(task_of(kernel).subject("cpu", 1), space.default, space.default, space.default)
    assert fleet.workers == 1


def test_runners_of_different_kinds_are_refused():
    class Other(FakeHost):
        def about(self):
            return {**super().about(), "features": "another processor"}

    with (
        serving() as (one, _),
        serving(Other()) as (two, _),
        pytest.raises(UsageError, match="are of different kinds"),
    ):
        connect([one, two], 1, key=KEY)


def test_errors_of_a_station_are_errors_here():
    class Broken(FakeHost):
        def answer(self, request):
            return super().answer(request) if request["do"] == "about" else {"error": "no room on the disk"}

    with serving(Broken()) as (address, _):
        fleet, kernel = connect([address], 1, key=KEY), small()
        space = Space(kernel, fleet.description)
        with pytest.raises(CompileError, match="no room on the disk"):
            fleet.measure(task_of(kernel).subject("cpu", 1), space.default, [space.default])


def test_a_killed_runner_is_lost_and_another_goes_on(tmp_path):
    if not hasattr(signal, "SIGKILL"):
        pytest.skip("no SIGKILL on this system")
    with runner_process(tmp_path) as (one, process), serving() as (two, _):
        fleet = RunnerPool([connect_to(one, KEY), connect_to(two, KEY)], 1)
        process.kill()
        process.wait()
        tuned_with(fleet, tmp_path / "t.sqlite", 32)
        assert fleet.workers == 1 and isinstance(fleet.links[0], TcpLink)


def test_tune_with_runners(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
    import tilewright as tw

    text = """
    func.func @main(%x: tensor<16x32xf32>, %w: tensor<32x48xf32>) -> tensor<16x48xf32> {
      %r = "tw.matmul"(%x, %w) : (tensor<16x32xf32>, tensor<32x48xf32>) -> tensor<16x48xf32>
      return %r : tensor<16x48xf32>
    }
    """
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    host = FakeHost()
    with serving(host) as (address, _):
        db = Database(tmp_path / "t.sqlite")
        report = tw.tune(text, trials=8, threads=1, database=db, runners=[address], key=KEY.decode())
        assert report.trials == 8 and report.tasks[0].ratio == 0.5 and report.recheck is None
    assert {r["do"] for r in host.asked} == {"measure", "contest"}
    assert [r.result is not None for r in db.rows()] == [True]


# ---- Ray -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes on this machine, each with the resource `board`."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install tilewright[ray]")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1, resources={"board": 1})
    second = made.add_node(num_cpus=1, resources={"board": 1})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made, second
    ray.shutdown()
    made.shutdown()


@pytest.mark.big
def test_ray_actors_measure_and_a_lost_node_is_replaced(cluster, tmp_path):
    made, second = cluster
    fleet = connect(["ray://auto?resource=board"], 1)
    assert fleet.workers == 2
    kernel = small()
    space = Space(kernel, fleet.description)
    candidates = [c for c in space.list() if c.digest != space.default.digest][:2]
    outcomes = fleet.measure(task_of(kernel).subject("cpu", 1), space.default, candidates)
    assert [o.status for o in outcomes] == ["ok", "ok"]
    threading.Timer(1.0, made.remove_node, (second,)).start()
    tuned_with(fleet, tmp_path / "t.sqlite", 40)
    end = time.monotonic() + 60
    while fleet.workers == 2 and time.monotonic() < end:  # the lost node is noticed when it is asked
        with contextlib.suppress(Died):
            fleet.contest(task_of(kernel).subject("cpu", 1), space.default, space.default, candidates[0])
    assert fleet.workers == 1 and "ray:" in fleet.lost[0]


def test_ray_addresses_are_checked():
    pytest.importorskip("ray", reason="ray is not installed: pip install tilewright[ray]")
    with pytest.raises(UsageError, match="is no address of a Ray cluster"):
        connect(["ray://auto?board=1"], 1)
