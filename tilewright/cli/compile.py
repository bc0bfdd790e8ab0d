"""The commands that compile a model: `compile`, `run`, `explain`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..support.dims import Dim, open_dims
from ..support.dtypes import NUMPY
from ..support.errors import UsageError, printable
from ..support.formulas import value_of
from . import data
from .app import app
from .common import check_writable, note, refuse_options, table, with_compile_options

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model file, such as model.onnx or model.mlir.", show_default=False)
]
ModelOrPackage = Annotated[
    str, typer.Argument(metavar="MODEL|m.tw", help="A model, or a package made by `compile`.", show_default=False)
]


Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL|NAME=MODEL...", help="A model (.onnx, .mlir), or several with names for entries."),
]


#: how names of files with IR end
IR_SUFFIXES = (".mlir", ".txt", "")


EntryName = Annotated[
    str | None,
    typer.Option("--entry", metavar="NAME", help="The entry, of a package that has several.", show_default=False),
]
Sha256 = Annotated[
    str | None,
    typer.Option(metavar="HEX", help="Use the package only if its file has this SHA-256.", show_default=False),
]
ChipFile = Annotated[
    str | None,
    typer.Option("--chip", metavar="chip.py", help="The file of the chip a package was made for.", show_default=False),
]


def chosen(executable: Any, entry: str | None) -> Any:
    """The entry of an executable that was asked for; UsageError for none of several."""
    from ..runtime.executable import find_entry

    return find_entry(getattr(executable, "entries", {"main": executable}), entry)


def sources(models: list[str]) -> str | dict[str, str]:
    """One model, or several by the names of their entries: ``prefill=prefill.onnx decode=decode.onnx``."""
    if len(models) == 1 and ("=" not in models[0] or Path(models[0]).exists()):
        return models[0]
    pairs = [text.partition("=") for text in models]
    found = {name: path for name, _, path in pairs if name and path}
    if len(found) < len(models):
        hint = "name each model once: prefill=prefill.onnx decode=decode.onnx"
        raise UsageError(f"{', '.join(models)}: several models need names", stage="command line", hint=hint)
    return found


def is_package(source: str) -> bool:
    return source.endswith(".tw")


def obtain(source: str, options: dict[str, Any], sha256: str | None = None, chip: str | None = None) -> Any:
    """The executable of a model, or of a package, for which options of the compilation make no sense.

    With ``stop_after`` it is the level at which the compilation stopped.
    """
    import tilewright as tw

    if not is_package(source):
        if sha256 is not None:
            raise UsageError("--sha256 is for packages (.tw), which are code that is run", stage="command line")
        if chip is not None:
            hint = f"--target cpu+{chip}"
            raise UsageError(
                "--chip is for packages (.tw): a model is compiled for it", stage="command line", hint=hint
            )
        result = tw.compile(source, **options)
        report_verified(result, options)
        return result
    refuse_options(
        ["threads"],
        f"for {source!r}, which is compiled already",
        "give it when the package is made: tilewright compile",
    )
    return tw.load(source, threads=options["threads"], sha256=sha256, chip=chip)


@app.command("compile")
@with_compile_options
def compile_command(
    model: Models,
    options: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE|DIR", help="The package (m.tw), or a folder for exported files."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the target for exported files; may be repeated."),
    ] = None,
) -> None:
    """Compile a model to a package, which loads without the model and without compiling again.

    Targets for machines without Tilewright write source code or a library into a folder instead.

    \b
      tilewright compile model.onnx -o model.tw
      tilewright compile model.onnx -o model.tw --shape tokens=1x128 --threads 2
      tilewright compile model.onnx -o model.tw --shape tokens=batch:1..64,seq:1..512
      tilewright compile model.onnx -o model.tw --buckets batch=1,8 --buckets seq=32,64,128
      tilewright compile prefill=p.onnx decode=d.onnx --state past=present -o model.tw
      tilewright compile model.onnx --stop-after simplify            print level 2
      tilewright compile model.onnx -o m.tw --dump levels/ --time    one file of IR a stage
      tilewright compile model.onnx --target c -o out/               source files (see `tilewright targets`)
      tilewright compile model.onnx --target wasm -o site/           a static site
    """
    import tilewright as tw

    from ..runtime.export import exports
    from ..support.numbers import size
    from ..targets.base import find

    if output is None and options["stop_after"] is None:
        exported = exports(find(options["target"]))
        where = "-o out, a folder for its files, or -o model.tw" if exported else "-o model.tw"
        raise UsageError("where should the package go?", stage="command line", hint=f"add {where}")
    source = sources(model)
    if not isinstance(source, str) and (output is None or output.suffix != ".tw"):
        raise UsageError("several entries make a package: -o model.tw", stage="command line")
    if options["specialize"] == "background" and open_dims(options["inputs"]):
        raise UsageError(
            "--specialize background is for the process that compiles the model: a package with open dimensions has "
            "no model that programs for single sizes could be compiled from",
            stage="command line",
            hint="leave it out, or compile where the model runs: tilewright run, or tilewright.compile",
        )
    folder = output is not None and (output.is_dir() or not output.suffix) and options["stop_after"] is None
    if not folder:
        check_result(output, [source] if isinstance(source, str) else source.values(), options)
        if setting:
            raise UsageError("--setting is for exported files: -o must name a folder", stage="command line")
    settings = export_settings(options["target"], setting or []) if folder else {}
    start = time.perf_counter()
    result: Any = tw.compile(source, **options)
    if folder and output is not None:
        target = find(options["target"])
        joined = target.joined if settings.get("fallback") != "no" else ()
        others = [tw.compile(source, **{**options, "target": name}) for name in joined]
        written = result.export(output, beside=others, **settings) if others else result.export(output, **settings)
        note(f"{output}: {', '.join(p.name for p in written)}, compiled in {time.perf_counter() - start:.2f} s")
        return
    if options["stop_after"] is not None or output is None:
        emit_ir(result, output)
        return
    if options["buckets"] and not result.buckets.open():
        result.specialize_buckets()
    report_verified(result, options)
    result.save(output)
    note(f"{output}: {size(output.stat().st_size)}, compiled in {time.perf_counter() - start:.2f} s")


def check_result(output: Path | None, reads: Iterable[str | Path], options: Mapping[str, Any]) -> None:
    """UsageError if what the options make of the files that are read cannot be written to this file, or should not."""
    from ..runtime.export import exports
    from ..targets import base

    if options["stop_after"] is not None:
        check_writable(output, "the IR", IR_SUFFIXES, reads)
    elif output is not None and output.suffix != ".tw" and exports(base.find(options["target"])):
        raise UsageError(
            f"cannot write one file {str(output)!r}: target {options['target']!r} writes several into a folder",
            stage="command line",
            hint=f"give a folder (-o {output.stem or 'out'}), or a package (-o {output.stem or 'm'}.tw)",
        )
    else:
        check_writable(output, "the package", [".tw"], reads)


def report_verified(result: Any, options: Mapping[str, object]) -> None:
    """With --verify, say what was checked (a difference has raised an error before)."""
    if options["verify"] and options["stop_after"] is None:
        entries = getattr(result, "entries", None)  # a model with open shapes has none: it checks every part it makes
        if entries is None:
            note("every specialization will be checked when it is made")
        for entry in (entries or {}).values():
            note(entry.package.report["notes"][-1])


def export_settings(target: str, given: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` pairs, checked before anything is compiled."""
    from ..runtime.export import check_settings
    from ..targets import base

    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--setting {text!r} is not NAME=VALUE", stage="command line")
        settings[name] = value
    check_settings(base.find(target), settings)
    return settings


def emit_ir(result: Any, output: Path | None) -> None:
    """Print or write what a stopped compilation gave."""
    if output is None:
        typer.echo(result.text())
    else:
        result.save(output)


@app.command()
@with_compile_options
def run(
    model: ModelOrPackage,
    options: dict[str, Any],
    input: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="x.npz", help="Inputs by name; default: random, seeded.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="y.npz", help="Write the outputs by name.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(metavar="y.npz|reference", help="Compare with these outputs, or with the NumPy reference."),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Largest difference allowed, relative to the largest value of the output; default: by its precision, "
            "1e-4 for f32.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", "--repeats", min=1, metavar="N", help="Run N times and print the times.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Run on a simulated machine of the target's kind; shows instructions.")
    ] = False,
    entry: EntryName = None,
    sha256: Sha256 = None,
    chip: ChipFile = None,
) -> None:
    """Run a model or a package, and check what comes out.

    Without --input, floats are normal random numbers, integers and booleans 0 or 1, and open dimensions have sizes in
    the middle of their ranges. States (--state) are zeros before
    the first run and go from each to the next; the outputs are those of the last. A package is native code that runs
    with your rights: run only those that come from where you trust.

    \b
      tilewright run model.onnx --check reference
      tilewright run model.tw --input in.npz --output out.npz
      tilewright run model.tw --input in.npz --check expected.npz --rtol 1e-4
      tilewright run model.onnx --threads 2 --repeat 20
      tilewright run decoder.onnx --state past_key=present_key --repeat 20
      tilewright run model.tw --entry decode --input in.npz
    """
    from ..runtime.dynamic import DynamicExecutable

    if options["stop_after"] is not None and (output, check, repeat, emulate) != (None, None, 1, False):
        raise UsageError("--stop-after leaves nothing to run", stage="command line")
    if emulate and repeat > 1:
        raise UsageError("--repeat has no meaning with --emulate: a simulated run has no times", stage="command line")
    check_writable(output, "the outputs", [".npz"], [model, input, check])
    given = data.read_npz(input) if input else None
    wanted = check_source(model, check, options, given, repeat)
    executable = obtain(model, options, sha256, chip)
    if options["stop_after"] is not None:
        emit_ir(executable, None)
        return
    executable = chosen(executable, entry)
    if given is None:
        given = data.random_inputs(data.fixed_shapes(executable, model), seed)
    if repeat > 1 and isinstance(executable, DynamicExecutable):
        executable.run(given)  # compiles for these sizes, which is no part of a run
    times, values = [], []
    emulated = executable.emulate(given) if emulate else None
    if emulated is not None:
        values = emulated.outputs[0]
    for _ in range(0 if emulated else repeat):
        start = time.perf_counter()
        values = executable.run(given)
        times.append(time.perf_counter() - start)
    results = data.flat({o.name: value for o, value in zip(executable.outputs, values, strict=True)})
    if output:
        data.write_npz(output, results)
    describe(results)
    if emulated is not None:
        show_emulated(emulated)
    if len(times) > 1:
        ms = sorted(1e3 * t for t in times)
        note(f"{repeat} runs: min {ms[0]:.3f} ms, median {ms[len(ms) // 2]:.3f} ms, max {ms[-1]:.3f} ms", wanted=True)
    if wanted:
        expected, quanta = wanted(given)
        allowed = data.Allowed(rtol, precision_of(executable))
        errors = data.compare(results, expected, allowed, quanta)
        said = ", ".join(f"{name} {error:.1e}" for name, error, _ in errors)
        more = [f"rounding to quanta explains {e:.1e} of {n}" for n, _, e in errors if e > allowed.of(results[n])]
        note(f"check passed: {said} ({'; '.join([allowed.described(results[n] for n in expected), *more])})")


def precision_of(executable: Any) -> str:
    """What an executable was compiled for; of ``auto``, what that chose."""
    package = getattr(executable, "package", None)
    return str((package.report if package else executable.options).get("precision", "f32"))


def show_emulated(emulated: Any) -> None:
    """Instructions of every kernel call, and the sizes of the image."""
    if emulated.calls:
        total = max(emulated.instructions or 0, 1)
        rows = [
            (c.instructions, f"{100 * c.instructions / total:.1f}%", ", ".join(c.names) or c.symbol)
            for c in emulated.calls
        ]
        table(("instructions", "share", "kernel"), rows)
    if emulated.instructions is not None:
        note(f"{emulated.machine}: {emulated.instructions} instructions", wanted=True)
    if emulated.sections:
        note("image: " + ", ".join(f"{name} {size} bytes" for name, size in emulated.sections.items()), wanted=True)


def check_source(
    model: str,
    check: str | None,
    options: dict[str, Any],
    given: dict[str, np.ndarray] | None = None,
    runs: int = 1,
) -> Callable[[dict[str, np.ndarray]], tuple[dict[str, np.ndarray], Callable[[], dict[str, float]]]] | None:
    """How to get the expected outputs of the last of so many runs from the inputs, and what `data.compare` asks of
    quanta; None without --check. Files are read before compiling."""
    if check is None:
        return None
    if check != "reference":
        expected = data.read_npz(Path(check))
        return lambda inputs: (expected, dict)
    if is_package(model):
        raise UsageError(
            "--check reference needs the model: a package holds compiled code only",
            stage="command line",
            hint="check against outputs saved with --output",
        )
    import tilewright as tw

    from ..driver.quantized_tolerance import allowed
    from ..graph.interpret import Change, interpret

    quiet = {**options, "print_after": (), "dump": None, "time": False, "verify": False, "stop_after": "import"}
    quiet |= {"precision": "f32", "tolerance": None}  # the graph before either has a meaning
    ranges = open_dims(options["inputs"])
    if given is not None and (not options["inputs"] or ranges):
        quiet["inputs"] = {name: array.shape for name, array in given.items()}
    elif ranges:  # what random data has
        typical = {d.name: d.typical for d in ranges}
        quiet["inputs"] = {
            name: tuple(d.typical if isinstance(d, Dim) else value_of(str(d), typical) for d in shape)
            for name, shape in options["inputs"].items()
        }
    graph: Any = tw.compile(model, **quiet)
    states: dict[str, str] = options["states"] or {}

    def outputs_of(inputs: dict[str, np.ndarray], change: Change | None = None) -> dict[str, np.ndarray]:
        """Without states all runs give the same; with them every run begins with what the one before has left."""
        known = {name: np.zeros(t.dims, NUMPY[t.dtype]) for name, t in graph.inputs() if name in states}
        for _ in range(runs if states else 1):
            outputs = interpret(graph, {**inputs, **known}, change=change)
            known = {name: outputs[following] for name, following in states.items()}
        return {name: array for name, array in outputs.items() if name not in states.values()}

    def expected_of(inputs: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Callable[[], dict[str, float]]]:
        expected = outputs_of(inputs)
        return expected, lambda: allowed(graph, lambda change: outputs_of(inputs, change), expected)

    return expected_of


def describe(results: dict[str, np.ndarray]) -> None:
    """A line an output: shape, dtype, and enough numbers to see whether they are sane."""
    rows = []
    for name, value in results.items():
        numbers = value.astype(np.float64) if value.dtype.kind not in "cOSU" and value.size else np.zeros(0)
        low, mean, high = (f"{f(numbers):.6g}" if numbers.size else "" for f in (np.min, np.mean, np.max))
        rows.append((name, "x".join(map(str, value.shape)) or "scalar", value.dtype, low, mean, high))
    table(("output", "shape", "dtype", "min", "mean", "max"), rows)


@app.command()
@with_compile_options
def explain(
    model: ModelOrPackage,
    options: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: bytes and seconds as numbers.")] = False,
    entry: EntryName = None,
    sha256: Sha256 = None,
    chip: ChipFile = None,
) -> None:
    """Show what a model became: its levels, kernels, sizes and memory.

    \b
      tilewright explain model.onnx
      tilewright explain model.tw --json
    """
    result = obtain(model, options, sha256, chip)
    if entry is not None and options["stop_after"] is None:
        result = chosen(result, entry)
    if options["stop_after"] is not None:
        emit_ir(result, None)
    elif as_json:
        typer.echo(json.dumps(result.facts(), indent=1))
    else:
        typer.echo(printable(result.explain()))
