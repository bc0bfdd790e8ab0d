"""Manifests that somebody wrote by hand, with right checksums: whatever a field holds, loading works or ends in a
PackageError."""

import copy
import random
import struct
import zlib

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.forged import rewrite

import tilewright as tw
from tilewright.program import package as container
from tilewright.support.errors import PackageError, UsageError

WRONG = (2**70, -1, 2**31, 2**63 - 1, 1e308, float("nan"), "x", "", None, [], {}, True, [[[[]]]], "d9", {"a": 1})
KINDS = {"fixed": (2, {}), "open": ("n", {"inputs": {"x": ("n:1..8", 4)}}), "dynamic": ("n", {})}


def places(told, at=()):
    """Where something stands in a manifest, but for the facts of `explain`."""
    if at and at[-1] in ("kernels", "levels"):
        return
    yield at
    items = told.items() if isinstance(told, dict) else enumerate(told[:3]) if isinstance(told, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


@pytest.fixture(scope="module", params=list(KINDS))
def saved(request, tmp_path_factory):
    rows, options = KINDS[request.param]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Softmax", ["x"], ["h"]), helper.make_node("Concat", ["h", "x"], ["y"], axis=0)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    run = tw.compile(model, threads=1, **options)
    run(np.ones((2, 4), np.float32))
    path = tmp_path_factory.mktemp("forged") / "m.tw"
    run.save(path)
    return path, path.read_bytes()


def test_any_field_may_hold_anything(saved):
    path, data = saved
    manifests = []
    rewrite(path, lambda m: manifests.append(copy.deepcopy(m)))
    cases = [(at, wrong) for at in places(manifests[0]) if at for wrong in WRONG]
    for at, wrong in random.Random(0).sample(cases, min(len(cases), 700)):
        path.write_bytes(data)

        def forge(told, at=at, wrong=wrong):
            for key in at[:-1]:
                told = told[key]
            told[at[-1]] = wrong

        rewrite(path, forge)
        try:
            tw.load(path)
        except PackageError:
            continue
        except UsageError as e:  # a target that another program may have registered
            assert "unknown target" in e.message, (at, wrong)
        except Exception as e:
            raise AssertionError((at, wrong)) from e
    path.write_bytes(data)
    tw.load(path)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[]", b"5", b"{", b'{"a": ' * 5000, b"\xff", b'{"target": "cpu"}', b"nan"]
)
def test_manifests_that_are_none(saved, text):
    path, data = saved
    magic, version, _, offset, _ = container._HEAD.unpack_from(data)
    head = container._HEAD.pack(magic, version, zlib.crc32(text), offset, len(text))
    path.write_bytes(head + data[container._HEAD.size : offset] + text)
    with pytest.raises(PackageError):
        tw.load(path)
    path.write_bytes(struct.pack("<8s", magic) + data[8:])
