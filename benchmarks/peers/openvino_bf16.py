"""OpenVINO, CPU plugin, latency hint, told to compute in bfloat16; an error where it then computes in float32."""

from worker import load_peer

#: this peer computes in less than float32, so its error is shown but not judged
REDUCED = True
_PLAIN = load_peer("openvino")


def version() -> str:
    return f"{_PLAIN.version()} (bf16)"


def load(onnx_path, threads):
    model = _PLAIN.compiled(onnx_path, threads, INFERENCE_PRECISION_HINT="bf16")
    chosen = model.get_property("INFERENCE_PRECISION_HINT")
    if "bf" not in str(chosen):
        raise RuntimeError(f"OpenVINO computes in {chosen} on this processor")
    return _PLAIN.runner(model)
