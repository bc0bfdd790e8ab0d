"""OpenVINO, CPU plugin, latency hint, with the precision that it chooses: bfloat16 where the CPU multiplies it."""

from worker import load_peer

#: this peer computes in less than float32, so its error is shown but not judged
REDUCED = True
_PLAIN = load_peer("openvino")


def version() -> str:
    return f"{_PLAIN.version()} (default precision)"


def load(onnx_path, threads):
    model = _PLAIN.compiled(onnx_path, threads)
    print("openvino computes in", model.get_property("INFERENCE_PRECISION_HINT"))
    return _PLAIN.runner(model)
