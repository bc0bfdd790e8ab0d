"""The part of ONNX Runtime's Python interface that programs use for inference, on Tilewright.

import tilewright.compat.onnxruntime as ort      # instead of: import onnxruntime as ort

session = ort.InferenceSession("model.onnx")
y, = session.run(["y"], {"x": x})

What a program asks for is done, has no effect on the results (levels of optimization, arenas, execution modes), or is
refused with the reason: nothing that would change what happens is ignored. Everything runs on the CPU.
"""

from __future__ import annotations

import ctypes
import enum
import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from .. import __version__
from ..driver.service import compile
from ..frontends.onnx.reader import DTYPES as OF_ONNX
from ..frontends.onnx.reader import read
from ..runtime.entries import MultiExecutable
from ..runtime.load import load
from ..support.dtypes import DTYPES
from ..support.errors import InputError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg", "OrtValue",
    "RunOptions", "SessionOptions", "__version__", "disable_telemetry_events", "enable_telemetry_events",
    "get_all_providers", "get_available_providers", "get_device", "get_version_string", "set_default_logger_severity",
]  # fmt: skip

#: the number of an element type in ONNX, by ours
_NUMBERS = {short: number for number, short in OF_ONNX.items()}
_CPU = "CPUExecutionProvider"


class GraphOptimizationLevel(enum.IntEnum):
    """Accepted, without effect: all passes keep the results."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Accepted, without effect: kernels run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` such as ``"tensor(float)"``, `shape` with a name or None for an open dimension."""

    name: str
    type: str
    shape: list[int | str | None] = field(default_factory=list)


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class _Entries:
    """Configuration entries: kept, and given back."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise UsageError(f"there is no configuration entry {key!r}", hint=f"there are {', '.join(self._entries)}")
        return self._entries[key]


class SessionOptions(_Entries):
    """Options of a session. `intra_op_num_threads` (0: the default of `tilewright.compile`), `log_severity_level` and
    the overrides of free dimensions are obeyed; `enable_profiling`, `optimized_model_filepath` and libraries of custom
    operators are refused when the session is made; the others change nothing that a program could see.

    AttributeError for an option that ONNX Runtime does not have either.
    """

    __slots__ = (
        "dimensions", "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "enable_profiling",
        "execution_mode", "execution_order", "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads",
        "log_severity_level", "log_verbosity_level", "logid", "optimized_model_filepath", "profile_file_prefix",
        "use_deterministic_compute", "use_per_session_threads",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = self.inter_op_num_threads = 0
        self.graph_optimization_level: object = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode: object = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order: object = 0
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.use_per_session_threads, self.use_deterministic_compute = True, False
        self.enable_profiling, self.profile_file_prefix, self.optimized_model_filepath = False, "", ""
        #: sizes by the names of open dimensions
        self.dimensions: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; those of ONNX Runtime tune what there is not here."""
        self._entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give an open dimension a size: the model is compiled for it at once."""
        self.dimensions[name] = int(size)

    def register_custom_ops_library(self, path: str) -> None:
        """Refused: such libraries are made for ONNX Runtime."""
        raise UsageError(
            f"{path!r}: libraries of custom operators cannot be loaded",
            hint="docs/add_an_operator.md shows how an operator is added",
        )


class RunOptions(_Entries):
    """Options of a run: `terminate` ends it before it begins, the others change nothing."""

    __slots__ = (
        "log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches", "terminate",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.terminate = self.only_execute_path_to_fetches = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        self._entries[str(key)] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        return self._get(key)


class InferenceSession:
    """A model to run with a dict of arrays: an ONNX file or its bytes, or a ``.tw`` package.

    >>> from onnx import TensorProto, helper
    >>> x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "xy")
    >>> graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    >>> session = InferenceSession(helper.make_model(graph).SerializeToString())
    >>> session.get_inputs()
    [NodeArg(name='x', type='tensor(float)', shape=['n', 2])]
    >>> session.run(None, {"x": np.ones((1, 2), np.float32)})
    [array([[-1., -1.]], dtype=float32)]
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[object] | None = None,
        *,
        enable_fallback: int | bool = True,
        disabled_optimizers: Sequence[str] | None = None,
    ) -> None:
        """Compile a model, or load a package; raises what `tilewright.compile` and `tilewright.load` raise.

        Providers that are not there are named in a warning, as ONNX Runtime does; UsageError if the CPU is not among
        those given, or for options that cannot be obeyed (see `SessionOptions`).
        """
        _check_providers(providers)
        options = sess_options or SessionOptions()
        _check_options(options)
        self._options = options
        threads = options.intra_op_num_threads or None
        if isinstance(path_or_bytes, (str, os.PathLike)) and os.fspath(path_or_bytes).endswith(".tw"):
            if options.dimensions:
                raise UsageError("a package has its sizes: overrides of free dimensions have no meaning for it")
            loaded: Any = load(path_or_bytes, threads=threads)
            if isinstance(loaded, MultiExecutable):
                loaded = loaded.entry()  # there are several: an error that names them
            self._inputs, self._outputs = ([_io_info(i) for i in infos] for infos in (loaded.inputs, loaded.outputs))
            name = getattr(loaded, "name", None) or loaded.package.report.get("model", "")
            self._executable, self._meta = loaded, ModelMetadata("tilewright", str(name))
            return
        proto = read(path_or_bytes).proto
        graph = proto.graph
        constants = {t.name for t in graph.initializer}
        self._inputs = [_node_arg(i, options.dimensions) for i in graph.input if i.name not in constants]
        self._outputs = [_node_arg(o, options.dimensions) for o in graph.output]
        self._meta = ModelMetadata(
            proto.producer_name, graph.name, proto.domain, proto.doc_string, graph.doc_string, proto.model_version,
            {p.key: p.value for p in proto.metadata_props},
        )  # fmt: skip
        fixed = {i.name: tuple(i.shape) for i in self._inputs if i.type.startswith("tensor(")}
        known = all(isinstance(d, int) for shape in fixed.values() for d in shape)
        inputs: Any = fixed if options.dimensions and known else None
        self._executable = compile(path_or_bytes, threads=threads, inputs=inputs)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """The named outputs (all for None), from arrays (or OrtValues) by input name.

        InputError for arrays that do not fit, UsageError for an output that the model does not have.
        """
        if run_options is not None and run_options.terminate:
            raise UsageError("the run was ended by RunOptions.terminate", stage="run")
        self._check_outputs(output_names or ())
        given = {n: v.numpy() if isinstance(v, OrtValue) else v for n, v in input_feed.items()}
        results = dict(zip([o.name for o in self._outputs], self._executable.run(given), strict=True))
        return list(results.values()) if not output_names else [results[n] for n in output_names]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` with OrtValues in and out."""
        return [OrtValue(a) for a in self.run(output_names, input_dict_ort_values, run_options)]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with what is bound, and write into the outputs that are bound to memory."""
        names = list(iobinding.outputs)
        iobinding.put(self.run(names or None, iobinding.inputs, run_options), names or [o.name for o in self._outputs])

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        callback: Callable[[list[np.ndarray], object, str], None],
        user_data: object = None,
        run_options: RunOptions | None = None,
    ) -> None:
        """`run` in a thread of its own, which calls ``callback(results, user_data, error)``; no error is ''."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as e:
                results, error = [], str(e)
            callback(results, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def io_binding(self) -> IOBinding:
        """Inputs and outputs that are bound to memory before the run."""
        return IOBinding(self)

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: initializers are constants of the compiled model."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        return self._meta

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {_CPU: {}}

    def set_providers(self, providers: Sequence[object] | None = None, provider_options: object = None) -> None:
        """Check that the CPU is among the providers."""
        _check_providers(providers)

    def disable_fallback(self) -> None:
        """Nothing to do: there is nothing to fall back to."""

    enable_fallback = disable_fallback

    def end_profiling(self) -> str:
        """Refused: see `SessionOptions.enable_profiling`."""
        raise _no_profiling()

    def _check_outputs(self, names: Sequence[str]) -> None:
        known = [o.name for o in self._outputs]
        unknown = [n for n in names if n not in known]
        if unknown:
            raise UsageError(
                f"the model has no output {unknown[0]!r}", stage="run", hint=f"its outputs are {', '.join(known)}"
            )


class OrtValue:
    """An array (or a list of arrays) as inputs and outputs of a session; it shares the array's memory.

    >>> value = OrtValue.ortvalue_from_numpy(np.ones((1, 2), np.float32))
    >>> value.shape(), value.data_type(), value.device_name()
    ([1, 2], 'tensor(float)', 'cpu')
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value on the CPU; UsageError for another device."""
        _check_device(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: npt.DTypeLike = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Memory for a value; `element_type` is NumPy's or the number that ONNX gives it."""
        _check_device(device_type)
        return OrtValue(np.zeros(tuple(shape), _dtype(element_type)))

    def numpy(self) -> np.ndarray:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return _type_name(DTYPES[self._array.dtype]) if self.is_tensor() else "seq(tensor)"

    def element_type(self) -> int:
        """The number of the element type in ONNX."""
        return _NUMBERS[DTYPES[self._array.dtype]]

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        return self._array is not None

    def is_tensor(self) -> bool:
        return isinstance(self._array, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._array, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Write another array of the same shape and type into this memory; InputError for any other."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise InputError(
                f"the value is {self._array.dtype}{self.shape()}, not {np_arr.dtype}{list(np_arr.shape)}", stage="run"
            )
        self._array[...] = np_arr


class IOBinding:
    """Where the inputs of a session come from, and where its outputs go; from `InferenceSession.io_binding`.

    `inputs` and `outputs` are what is bound, by name; an output without memory is None until a run.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, OrtValue] = {}
        self.outputs: dict[str, OrtValue | None] = {}
        self._results: dict[str, OrtValue] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        self.bind_ortvalue_input(name, OrtValue(np.asarray(arr_on_cpu)))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Take an input from memory at an address, which must live until the run."""
        _check_device(device_type)
        self.bind_ortvalue_input(name, OrtValue(_at(buffer_ptr, shape, element_type)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        known = [i.name for i in self._session.get_inputs()]
        if name not in known:
            raise InputError(f"the model has no input {name!r}", stage="run", hint=f"its inputs are {', '.join(known)}")
        self.inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: in new memory, or at an address of this type and shape."""
        _check_device(device_type)
        self._session._check_outputs([name])
        self.outputs[name] = None if buffer_ptr is None else OrtValue(_at(buffer_ptr, shape or (), element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._session._check_outputs([name])
        self.outputs[name] = ortvalue

    def put(self, results: Sequence[Any], names: Sequence[str]) -> None:
        """Take the results of a run: into the memory that is bound where there is some."""
        self._results = {}
        for name, result in zip(names, results, strict=True):
            place = self.outputs.get(name)
            if place is not None:
                place.update_inplace(result)
            self._results[name] = place if place is not None else OrtValue(result)

    def get_outputs(self) -> list[OrtValue]:
        return list(self._results.values())

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return [v.numpy() for v in self._results.values()]

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    synchronize_outputs = synchronize_inputs


# ---- checks and conversions ----------------------------------------------------------------------------------------


def _check_providers(providers: Sequence[Any] | None) -> None:
    names = [p if isinstance(p, str) else p[0] for p in providers or ()]
    absent = [n for n in names if n != _CPU]
    if names and _CPU not in names:
        raise UsageError(
            f"provider {absent[0]!r} is not available", stage="load", hint=f"everything runs on the CPU: add {_CPU!r}"
        )
    if absent:
        warnings.warn(f"providers {', '.join(absent)} are not available: {_CPU} is used", UserWarning, stacklevel=3)


def _check_options(options: SessionOptions) -> None:
    if options.enable_profiling:
        raise _no_profiling()
    if options.optimized_model_filepath:
        raise UsageError(
            "optimized_model_filepath: what is made of a model is no ONNX file",
            hint="tilewright.compile(...).save('model.tw') keeps the compiled model; a session loads it",
        )
    if options.log_severity_level >= 0:
        set_default_logger_severity(options.log_severity_level)


def _no_profiling() -> UsageError:
    return UsageError(
        "profiles of ONNX Runtime's form are not written",
        stage="profile",
        hint="tilewright profile model.onnx, or tilewright.compile(...).profile(inputs)",
    )


def _check_device(device_type: str) -> None:
    if device_type != "cpu":
        raise UsageError(f"there is no device {device_type!r}", stage="run", hint="everything runs on 'cpu'")


def _dtype(element_type: npt.DTypeLike | None) -> np.dtype:
    if isinstance(element_type, int):
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    return np.dtype(element_type)


def _at(pointer: int, shape: Sequence[int], element_type: npt.DTypeLike | None) -> np.ndarray:
    """The array at an address."""
    dtype = _dtype(element_type)
    count = int(np.prod(tuple(shape), dtype=np.int64)) * dtype.itemsize
    memory: Any = (ctypes.c_char * count).from_address(int(pointer))
    return np.frombuffer(memory, dtype).reshape(tuple(shape))


def _type_name(dtype: str) -> str:
    name = onnx.TensorProto.DataType.Name(_NUMBERS[dtype])
    return f"tensor({name.lower()})"


def _io_info(info: Any) -> NodeArg:
    """An input or output of a package."""
    kind = getattr(info, "kind", "tensor")
    if kind != "tensor":
        return NodeArg(info.name, kind)
    return NodeArg(info.name, _type_name(info.dtype), list(info.shape or ()))


def _node_arg(info: onnx.ValueInfoProto, sizes: Mapping[str, int]) -> NodeArg:
    if info.type.WhichOneof("value") != "tensor_type":
        return NodeArg(info.name, str(info.type.WhichOneof("value")).removesuffix("_type"))
    t = info.type.tensor_type
    name = onnx.TensorProto.DataType.Name(t.elem_type)
    shape = [
        d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, d.dim_param) or None for d in t.shape.dim
    ]
    return NodeArg(info.name, f"tensor({name.lower()})", shape)


# ---- functions of the module ---------------------------------------------------------------------------------------


def get_available_providers() -> list[str]:
    """The names ONNX Runtime would list."""
    return [_CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    """The version of Tilewright."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Levels as of ONNX Runtime: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal; for the logger ``tilewright``."""
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    if not 0 <= severity < len(levels):
        raise UsageError(f"a log severity is 0 to 4, not {severity!r}")
    logging.getLogger("tilewright").setLevel(levels[severity])


def disable_telemetry_events() -> None:
    """Nothing to do: there is no telemetry."""


enable_telemetry_events = disable_telemetry_events
