"""The Open Inference Protocol v2 over HTTP, with tensors as JSON or, by its binary extension, as bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...support.dtypes import NUMPY
from .batching import Batcher, Port
from .body import Fields, Problem, parse_json
from .responding import respond
from .sampling import ServerLimits

#: the protocol's names of element types
TYPES = {
    "bool": "BOOL",
    "f16": "FP16",
    "bf16": "BF16",
    "f32": "FP32",
    "f64": "FP64",
    **{f"i{n}": f"INT{n}" for n in (8, 16, 32, 64)},
    **{f"ui{n}": f"UINT{n}" for n in (8, 16, 32, 64)},
}
LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data"]

BodyReader = Callable[[Request, ServerLimits, Sequence[str]], Awaitable[bytes]]


def routes(models: Mapping[str, Batcher], limits: ServerLimits, body: BodyReader) -> list[Route]:
    """The routes below /v2."""
    from ... import __version__

    def model(request: Request) -> Batcher:
        name = request.path_params["name"]
        if name not in models:
            raise Problem(404, f"there is no model {name[:200]!r}; there are: {', '.join(models) or 'none'}")
        return models[name]

    async def server(request: Request) -> Response:
        return JSONResponse({"name": "tilewright", "version": __version__, "extensions": EXTENSIONS})

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        return JSONResponse({"ready": True})

    async def model_ready(request: Request) -> Response:
        model(request)
        return JSONResponse({"name": request.path_params["name"], "ready": True})

    async def metadata(request: Request) -> Response:
        found = model(request)
        return JSONResponse(
            {
                "name": request.path_params["name"],
                "versions": ["1"],
                "platform": "tilewright",
                "inputs": [_described(p) for p in found.inputs],
                "outputs": [_described(p) for p in found.outputs],
            }
        )

    async def infer(request: Request) -> Response:
        found = model(request)
        data = await body(request, limits, ("application/json", "application/octet-stream"))

        async def work(stack: AsyncExitStack) -> Response:
            call = await run_in_threadpool(read_call, data, request.headers.get(LENGTH), found)
            outputs = await found.run(call["arrays"])
            return await run_in_threadpool(write_answer, request.path_params["name"], call, outputs, found.outputs)

        return await respond(request, limits.seconds, work)

    one = "/v2/models/{name}"
    return [
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        *(Route(p, metadata) for p in (one, one + "/versions/{version}")),
        *(Route(p + "/ready", model_ready) for p in (one, one + "/versions/{version}")),
        *(Route(p + "/infer", infer, methods=["POST"]) for p in (one, one + "/versions/{version}")),
    ]


def _described(port: Port) -> dict[str, Any]:
    shape = None if port.shape is None else [d if isinstance(d, int) else -1 for d in port.shape]
    return {"name": port.name, "datatype": TYPES.get(port.dtype, port.dtype), "shape": shape}


def read_call(data: bytes, header: str | None, model: Batcher) -> dict[str, Any]:
    """The arrays of a request by name, and what is wanted of the outputs; a Problem for what does not fit."""
    if header is not None and not (header.isascii() and header.isdigit() and int(header[:20]) <= len(data)):
        raise Problem(400, f"{LENGTH} must be the bytes of JSON at the body's beginning, not {header[:40]!r}")
    cut = len(data) if header is None else int(header)
    fields = Fields(parse_json(data[:cut], float))
    rest = memoryview(data)[cut:]
    known = {p.name: p for p in model.inputs}
    arrays: dict[str, np.ndarray] = {}
    for i, value in enumerate(fields.items("inputs", most=1000)):
        tensor = Fields(value, f"inputs[{i}].")
        name = tensor.text("name")
        if name not in known or name in arrays:
            raise tensor.wrong("name", f"must be each of {', '.join(known)} once, not {name[:100]!r}")
        arrays[name], rest = _read_tensor(tensor, known[name], rest)
    if missing := [n for n in known if n not in arrays]:
        raise fields.wrong("inputs", f"has no {', '.join(missing)}")
    if len(rest):
        raise Problem(400, f"{len(rest)} bytes follow the last tensor")
    names = [p.name for p in model.outputs]
    parameters = fields.take("parameters", {}, (dict,), "an object")
    wanted = {}
    for i, value in enumerate(fields.items("outputs", [], 1000)):
        output = Fields(value, f"outputs[{i}].")
        name = output.text("name", choices=names)
        wanted[name] = output.take("parameters", {}, (dict,), "an object").get("binary_data")
        output.done()
    identity = fields.text("id", None)
    fields.done()
    binary = parameters.get("binary_data_output", False) is True
    chosen = {n: binary if b is None else b is True for n, b in (wanted or dict.fromkeys(names)).items()}
    return {"arrays": arrays, "outputs": chosen, "id": identity}


def _read_tensor(tensor: Fields, port: Port, rest: memoryview) -> tuple[np.ndarray, memoryview]:
    """One input, and the bytes that follow it."""
    datatype = TYPES.get(port.dtype)
    if datatype is None or not port.plain:
        raise Problem(400, f"input {port.name!r} is {port.dtype}, which this protocol has no tensors of here")
    if (given := tensor.text("datatype")) != datatype:
        raise tensor.wrong("datatype", f"of {port.name!r} must be {datatype}, not {given[:40]!r}")
    shape = tensor.items("shape", most=32)
    if not all(type(d) is int and 0 <= d < 1 << 40 for d in shape) or not _fits(shape, port):
        dims = "any" if port.shape is None else [d if isinstance(d, int) else "*" for d in port.shape]
        raise tensor.wrong("shape", f"of {port.name!r} is {str(shape)[:100]}, the model takes {dims}")
    count, dtype = math.prod(shape), NUMPY[port.dtype]
    parameters = tensor.take("parameters", {}, (dict,), "an object")
    size = parameters.get("binary_data_size")
    values = tensor.take("data", None)
    tensor.done()
    if size is not None:
        if values is not None or type(size) is not int or size != count * dtype.itemsize or len(rest) < size:
            what = f"must be {count * dtype.itemsize} for {shape}, with so many bytes after the JSON and no 'data'"
            raise tensor.wrong("parameters.binary_data_size", what)
        read = rest[:size] if datatype != "BOOL" else np.frombuffer(rest[:size], np.uint8) != 0  # other bytes are true
        return np.frombuffer(read, dtype).reshape(shape), rest[size:]
    if not isinstance(values, list):
        raise tensor.wrong("data", "must be a list")
    try:
        flat = np.array(values)
        kinds = "b" if datatype == "BOOL" else "iu" if datatype.lstrip("U").startswith("INT") else "iuf"
        if flat.dtype.kind not in kinds and flat.size:
            raise ValueError(f"they are {flat.dtype}")
        if flat.size and datatype.lstrip("U").startswith("INT"):
            limits = np.iinfo(dtype)
            if int(flat.min()) < limits.min or int(flat.max()) > limits.max:
                raise ValueError(f"one is outside of {limits.min} to {limits.max}")
        if flat.size != count:
            raise ValueError(f"there are {flat.size}")
        with np.errstate(over="ignore"):
            return flat.astype(dtype).reshape(shape), rest
    except (ValueError, TypeError, OverflowError) as error:
        raise tensor.wrong("data", f"must be {count} values of {datatype}: {str(error)[:100]}") from None


def _fits(shape: list[int], port: Port) -> bool:
    if port.shape is None:
        return True
    return len(shape) == len(port.shape) and all(
        not isinstance(d, int) or d == n for n, d in zip(shape, port.shape, strict=True)
    )


def write_answer(name: str, call: Mapping[str, Any], outputs: list[Any], known: list[Port]) -> Response:
    """The outputs that were asked for, as JSON, and as bytes after it."""
    described, parts = [], []
    for port, value in zip(known, outputs, strict=True):
        if port.name not in call["outputs"]:
            continue
        if not isinstance(value, np.ndarray) or port.dtype not in TYPES:
            raise Problem(400, f"output {port.name!r} is {port.dtype}, which this protocol has no tensors of here")
        entry: dict[str, Any] = {"name": port.name, "datatype": TYPES[port.dtype], "shape": list(value.shape)}
        if call["outputs"][port.name]:
            parts.append(np.ascontiguousarray(value).tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            wide = value.astype(np.float32) if port.dtype in ("f16", "bf16") else value
            entry["data"] = wide.reshape(-1).tolist()
        described.append(entry)
    answer = {"model_name": name, "model_version": "1", "outputs": described}
    if call["id"] is not None:
        answer["id"] = call["id"]
    head = json.dumps(answer).encode()
    if not parts:
        return Response(head, media_type="application/json")
    return Response(b"".join([head, *parts]), headers={LENGTH: str(len(head))}, media_type="application/octet-stream")


__all__ = ["TYPES", "read_call", "routes", "write_answer"]
