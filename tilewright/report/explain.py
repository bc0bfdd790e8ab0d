"""The text of `Executable.explain`.

The compiler leaves a report in the package: ``{"model": name, "levels": [{"stage", "level", "text", "seconds"}],
"kernels": [{"symbol", "kind", "compile_s", "schedule", ...}], "notes": [...]}``; every part may be missing. What else
is said of a kernel is in `schedule.facts`; a kernel that fell to a rule that is not made for its kind is marked, with
the reason below the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ..program.package import Package
from ..program.program import COPY
from ..support.notebook import fragment
from ..support.numbers import count, size

if TYPE_CHECKING:
    from ..program.program import Call, Program, TensorInfo
    from ..runtime.executable import MemoryUsage


def explain(package: Package, memory: MemoryUsage, threads: int) -> str:
    report, program = package.report, package.program
    lines = [f"model: {report.get('model', '(unnamed)')}", f"target: {package.target}, {count(threads, 'thread')}"]
    if report.get("precision", "f32") != "f32":
        lines.append(f"precision: {report['precision']}")
    inputs, outputs = tensors(program)
    lines += [f"input  {t}" for t in inputs] + [f"output {t}" for t in outputs]
    lines += [f"open   {d}" for d in _ranges(program)]
    lines += [f"state  {s}" for s in program.states]
    lines += _levels(report.get("levels", ()))
    lines += _kernels(package, {k.get("symbol"): k for k in report.get("kernels", ())})
    lines += _devices(program, {k.get("symbol"): k for k in report.get("kernels", ())})
    lines += ["", "memory" + (f" at {_typical(program)}" if program.open else "")]
    if program.states:
        lines.append(f"  states   {size(memory.states)}")
    lines += [
        f"  weights  {size(memory.weights)}",
        f"  arena    {size(memory.arena)} (no plan needs less than {size(memory.arena_bound)})",
        f"  scratch  {size(memory.scratch)}",
        f"  code     {size(memory.code)}",
        f"  peak     {size(memory.peak)}" + (" of RAM; weights and code stay where they are stored" * memory.in_place),
    ]
    notes = report.get("notes", ())
    if notes:
        lines += ["", "notes", *(f"  {n}" for n in notes)]
    return "\n".join(lines)


def facts(package: Package, memory: MemoryUsage, threads: int) -> dict[str, Any]:
    """What `explain` says, as JSON data: ``model target precision threads inputs outputs states levels kernels calls
    memory notes``. Bytes and seconds are numbers; `calls` are in the order of the program, `kernels` are by symbol."""
    report, program = package.report, package.program
    codes = {symbol: len(code) for symbol in program.symbols if (code := _code(package, symbol)) is not None}
    known = {str(k["symbol"]): k for k in report.get("kernels", ()) if "symbol" in k}
    return {
        "model": report.get("model", ""),
        "target": package.target,
        "precision": report.get("precision", "f32"),
        "threads": threads,
        "inputs": [_tensor(t) for t in tensors(program)[0]],
        "outputs": [_tensor(t) for t in tensors(program)[1]],
        "dimensions": [{**asdict(d), "typical": d.typical} for d in (program.open.dims if program.open else ())],
        "states": [{**_tensor(s.tensor), "output": s.output, "in_place": not s.swapped} for s in program.states],
        "levels": list(report.get("levels", ())),
        "kernels": {s: {**known.get(s, {}), "code": codes.get(s, 0)} for s in program.symbols},
        "calls": [_call(program, c) for c in program.calls],
        **({"devices": [asdict(d) for d in program.devices]} if program.devices else {}),
        "memory": {
            n: getattr(memory, n) for n in ("weights", "states", "arena", "arena_bound", "scratch", "code", "peak")
        },
        "notes": list(report.get("notes", ())),
    }


def tensors(program: Program) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Inputs and outputs; where dimensions are open, with their names and formulas as sizes."""
    if program.open is None:
        return list(program.inputs), list(program.outputs)
    shown = program.open.shown
    pairs = (program.inputs, program.open.inputs), (program.outputs, program.open.outputs)
    inputs, outputs = ([replace(t, shape=shown(s)) for t, s in zip(ts, shapes, strict=True)] for ts, shapes in pairs)  # type: ignore[arg-type]
    return inputs, outputs


def _ranges(program: Program) -> list[str]:
    """A line for each open dimension: ``seq: 8 to 512, a multiple of 8; typically 64``."""
    dims = program.open.dims if program.open else ()
    return [
        f"{d.name}: {d.low} to {d.high}{f', a multiple of {d.divisor}' if d.divisor > 1 else ''}; typically {d.typical}"
        for d in dims
    ]


def _typical(program: Program) -> str:
    """For which sizes the bytes are that a program with open dimensions shows."""
    assert program.open is not None
    return ", ".join(f"{d.name} {d.typical}" for d in program.open.dims)


def _tensor(t: TensorInfo) -> dict[str, object]:
    return {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)}


def page(package: Package, memory: MemoryUsage, threads: int) -> str:
    """A piece of HTML for notebooks: inputs and outputs as a table, all that `explain` says folded below it."""
    program = package.program
    inputs, outputs = tensors(program)
    found = {"input": inputs, "output": outputs, "state": [s.tensor for s in program.states]}
    rows = [(kind, t.name, t.dtype, "x".join(map(str, t.shape)) or "scalar") for kind, ts in found.items() for t in ts]
    head = f"{package.report.get('model', 'model')}: {package.target}, {count(threads, 'thread')}, {size(memory.peak)}"
    return fragment(head, rows, explain(package, memory, threads), "explain")


def _levels(levels: Sequence[dict[str, Any]]) -> list[str]:
    if not levels:
        return []
    rows = [("stage", "level", "result", "seconds")]
    rows += [
        (str(e.get("stage", "")), str(e.get("level", "")), str(e.get("text", "")), f"{e.get('seconds', 0):.3f}")
        for e in levels
    ]
    return ["", "levels", *_table(rows)]


def _kernels(package: Package, reports: dict[str | None, dict[str, Any]]) -> list[str]:
    """One row a kernel call, in the order of the program; then the kernels that fell to a general rule."""
    extra = sorted({k for r in reports.values() for k in r if k in ("compile_s", "schedule")})
    counted = any("flops" in r for r in reports.values())
    several = bool(package.program.devices)
    head = ("kernel", *(("device",) if several else ()), "kind", *(("work",) if counted else ()), "code")
    rows = [(*head, *extra, "from")]
    for call in package.program.calls:
        about = reports.get(call.symbol, {})
        code = _code(package, call.symbol)
        names = ", ".join(call.names[:3]) + (f" +{len(call.names) - 3}" if len(call.names) > 3 else "")
        cells = [str(about.get(k, "")) for k in extra]
        kind = str(about.get("kind", "")) + (" (!)" if about.get("fell") or about.get("slow") else "")
        work = (operations(int(about.get("flops", 0)) + int(about.get("integer_ops", 0))),) if counted else ()
        where = (_where(package.program, call),) if several else ()
        rows.append((call.symbol, *where, kind, *work, size(len(code)) if code else "", *cells, names))
    calls, kernels = len(package.program.calls), len(package.program.symbols)
    lines = ["", f"{count(calls, 'kernel call')}, {count(kernels, 'kernel')}", *_table(rows)]
    return lines + fallen(package.program.symbols, reports)


def _code(package: Package, symbol: str) -> bytes | None:
    """The code of a kernel, also where it is in a part of the host's; None where it has none of its own."""
    whole = package.objects.get(symbol)
    parts = (code for name, code in package.objects.items() if name.startswith("part") and name.endswith(f"/{symbol}"))
    return next(parts, None) if whole is None else whole


def _where(program: Program, call: Call) -> str:
    """The device of a call; of a copy both."""
    names = [d.name for d in program.devices]
    source = program.device_of(call.args[0]) if call.symbol == COPY else call.device
    here = names[call.device]
    return here if source == call.device else f"{names[source]} -> {here}, {size(call.args[0].nbytes)}"


def _call(program: Program, call: Call) -> dict[str, object]:
    """A call as JSON data; of several devices with its own, and with what a copy brings there."""
    told: dict[str, object] = {"symbol": call.symbol, "names": list(call.names)}
    if program.devices:
        told["device"] = program.devices[call.device].name
        if call.symbol == COPY:
            told |= {"from": program.devices[program.device_of(call.args[0])].name, "bytes": call.args[0].nbytes}
    return told


def _devices(program: Program, reports: Mapping[str | None, dict[str, Any]]) -> list[str]:
    """What each of several devices has of a program, and why."""
    if not program.devices:
        return []
    lines = ["", "devices"]
    for n, d in enumerate(program.devices):
        here = [c for c in program.calls if c.device == n]
        copied = [c.args[0].nbytes for c in here if c.symbol == COPY and program.device_of(c.args[0]) != n]
        calls = count(sum(c.symbol != COPY for c in here), "kernel call")
        brought = f", {count(len(copied), 'copy', 'copies')} of {size(sum(copied))} to it" if copied else ""
        lines.append(f"  {d.name}: {calls}{brought}, arena {size(d.arena_size)}")
    for symbol in program.symbols:
        if why := reports.get(symbol, {}).get("why"):
            lines.append(f"  {symbol} on {reports[symbol].get('device')}: {why}")
    return lines


def fallen(symbols: Sequence[str], reports: Mapping[str | None, dict[str, Any]]) -> list[str]:
    """A line for each kernel that no rule made for its kind would take, or whose schedule does too much, with the
    reason; such a kernel may be many times slower than it need be. Then one for each that computes something again
    where that is too little to matter, and one for each whose loops ask for what they did not get."""
    found = [(s, reports[s]) for s in symbols if s in reports and (reports[s].get("fell") or reports[s].get("slow"))]
    again = [(s, reports[s]["remark"]) for s in symbols if s in reports and reports[s].get("remark")]
    unmet = [(s, "; ".join(reports[s]["unmet"])) for s in symbols if s in reports and reports[s].get("unmet")]
    lines = []
    if found:
        lines += ["", f"(!) {count(len(found), 'kernel')} that may be slow (tilewright report-slow writes reproducers)"]
        lines += [f"  {symbol} ({about.get('does')}) {why_slow(about)}" for symbol, about in found]
    if again:
        lines += ["", f"{count(len(again), 'kernel')} with a little work done again"]
        lines += [f"  {symbol}: {remark}" for symbol, remark in again]
    if unmet:
        lines += ["", f"{count(len(unmet), 'kernel')} not emitted in all as scheduled"]
        lines += [f"  {symbol}: {why}" for symbol, why in unmet]
    return lines


def why_slow(about: Mapping[str, Any]) -> str:
    """Why a kernel may be slow: what its schedule does too much, and why no better rule took it.

    >>> why_slow({"kind": "general", "fell": "rows: too few", "slow": ["it computes twice what the kernel asks"]})
    'by general: it computes twice what the kernel asks; fell to general: rows: too few'
    """
    found = [f"by {about.get('kind')}: {'; '.join(about['slow'])}"] if about.get("slow") else []
    found += [f"fell to {about.get('kind')}: {about['fell']}"] if about.get("fell") else []
    return "; ".join(found)


def operations(amount: int) -> str:
    """Arithmetic operations for people.

    >>> operations(0), operations(950), operations(2_147_483_648)
    ('', '950', '2.15 G')
    """
    if not amount:
        return ""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= scale:
            return f"{amount / scale:.3g} {unit}"
    return str(amount)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
