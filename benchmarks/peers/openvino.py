"""OpenVINO, CPU plugin, latency hint, told to compute in float32 (its default is bfloat16 where the CPU has it)."""

import openvino


def version() -> str:
    return f"openvino {openvino.__version__.split('-')[0]}"


def load(onnx_path, threads):
    return runner(compiled(onnx_path, threads, INFERENCE_PRECISION_HINT="f32"))


def compiled(onnx_path, threads, **more):
    """The model with these settings besides those that every precision has."""
    core = openvino.Core()
    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads, **more}
    return core.compile_model(core.read_model(onnx_path), "CPU", settings)


def runner(model):
    request = model.create_infer_request()
    outputs = list(request.model_outputs)

    def run(inputs):
        result = request.infer(inputs, share_inputs=True, share_outputs=True)
        return [result[output] for output in outputs]

    return run
