"""ONNX Runtime, CPU provider, every graph optimisation."""

import onnxruntime


def version() -> str:
    return f"onnxruntime {onnxruntime.__version__}"


def load(onnx_path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(onnx_path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)
