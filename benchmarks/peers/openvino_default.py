"""OpenVINO, CPU plugin, latency hint, with the precision that it chooses: bfloat16 where the CPU multiplies it."""

import openvino

#: this peer computes in less than float32, so its error is shown but not judged
REDUCED = True


def version() -> str:
    return f"openvino {openvino.__version__.split('-')[0]} (default precision)"


def load(onnx_path, threads):
    core = openvino.Core()
    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    model = core.compile_model(core.read_model(onnx_path), "CPU", settings)
    print("openvino computes in", model.get_property("INFERENCE_PRECISION_HINT"))
    request = model.create_infer_request()
    outputs = list(request.model_outputs)

    def run(inputs):
        result = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [result[output] for output in outputs]

    return run
