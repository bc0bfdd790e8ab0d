"""OpenVINO, CPU plugin, latency hint, told to compute in bfloat16; an error where it then computes in float32."""

import openvino

#: this peer computes in less than float32, so its error is shown but not judged
REDUCED = True


def version() -> str:
    return f"openvino {openvino.__version__.split('-')[0]} (bf16)"


def load(onnx_path, threads):
    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16",
    }
    model = core.compile_model(core.read_model(onnx_path), "CPU", settings)
    chosen = model.get_property("INFERENCE_PRECISION_HINT")
    if "bf" not in str(chosen):
        raise RuntimeError(f"OpenVINO computes in {chosen} on this processor")
    request = model.create_infer_request()
    outputs = list(request.model_outputs)

    def run(inputs):
        result = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [result[output] for output in outputs]

    return run
