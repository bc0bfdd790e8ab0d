"""The package file of a dynamic model: its source, and its cached specializations with shared constants.

The container is that of `package`; the manifest has ``"dynamic"`` where a static package has its program. Loading needs
no MLIR: only a part that is not in the file does.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..program import package as container
from ..program.package import Package
from ..program.program import Program, align_up
from ..program.versions import making
from ..support.dims import Dim
from ..support.dtypes import DTYPES, NUMPY
from ..support.files import replacing, written
from ..support.host_plan import Action, BodyInfo, SubgraphPlan
from ..support.mapped_file import MappedFile
from ..support.options import Options
from ..targets import base
from .constant_pool import ConstantPool
from .executable import Executable, threads_of
from .lazy import LazySource
from .open_executable import OpenExecutable, make
from .open_parts import OpenPart, SizePattern, Term
from .open_versions import OpenVersions
from .parts import DynamicInfo, EmbeddedConstant, PartitionedBody, SpecializedSubgraph, StoredSource, Subgraph

if TYPE_CHECKING:
    from .dynamic import DynamicExecutable
    from .staged import Staged


#: what control flow and its attributes are called in files of before
BEFORE = {
    "If": "if", "branch": "if", "Loop": "loop", "Scan": "scan", "num_scan_inputs": "scanned", "scan_input_axes": "axes",
    "scan_input_directions": "backwards", "directions": "backwards", "scan_output_axes": "output_axes",
    "scan_output_directions": "output_backwards",
}  # fmt: skip


class Arrays:
    """A list of arrays in which equal ones are one."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._by_id: dict[int, int] = {}
        self._by_content: dict[tuple[object, ...], int] = {}
        self._keep: list[np.ndarray] = []  # so that ids stay theirs

    def add(self, array: np.ndarray) -> int:
        if id(array) not in self._by_id:
            flat = np.asarray(array, order="C")  # a number stays one
            content = (array.dtype, array.shape, zlib.crc32(flat.reshape(-1).view(np.uint8).data), _sample(flat))
            at = self._by_content.get(content)
            if at is None or self.arrays[at].tobytes() != flat.tobytes():
                at = self._by_content[content] = len(self.arrays)
                self.arrays.append(flat)
            self._by_id[id(array)] = at
            self._keep.append(array)
        return self._by_id[id(array)]


def _sample(flat: np.ndarray) -> bytes:
    return flat.reshape(-1)[:16].tobytes()


# ---- writing ----


def save(executable: DynamicExecutable, path: str | os.PathLike[str]) -> None:
    """Write the file, atomically; UsageError if the place cannot be written."""
    executable.staged.check()
    with making():
        writer = _Writer(executable)
        manifest = writer.manifest()
    with written(path, "package"), replacing(path) as f:
        writer.write(f, manifest)


class _Writer:
    def __init__(self, executable: DynamicExecutable) -> None:
        self.executable = executable
        self.arrays, self.blobs = Arrays(), dict[str, bytes]()
        self.levels: dict[str, dict[str, str]] = {}

    def manifest(self) -> dict[str, object]:
        x = self.executable
        stored = x.store()
        self.blobs["source"] = stored.data
        bodies = list(x.staged.bodies.values())
        return {
            "name": x.name,
            "limit": x.staged.limit,  # for older versions, which have not all options
            "options": {**x.options, "target": base.find(x.options["target"]).recorded},
            "inputs": [asdict(t) for t in x.inputs],
            "outputs": [asdict(t) for t in x.outputs],
            "source": {
                "kind": stored.kind,
                "arrays": {n: self.arrays.add(a) for n, a in stored.arrays.items()},
                "bodies": stored.bodies,
            },
            "bodies": [{"info": asdict(b.info), "stages": [self.stage(s) for s in b.stages.values()]} for b in bodies],
            "opening": [self.program(p) for p in x.programs],
        }

    def stage(self, stage: Subgraph) -> dict[str, object]:
        return {
            "todo": stage.todo,
            "start": sorted(stage.start),
            "frozen": sorted(stage.frozen),
            "reads": stage.reads,
            "parts": [{"key": self.key(key), **self.part(part)} for key, part in stage.parts.items()],
            "open": [self.open_part(p) for p in reversed(stage.parts.open)],
        }

    def open_part(self, made: OpenPart) -> dict[str, object]:
        """A part for all sizes."""
        terms = [t if isinstance(t, int) else [t.dim, t.times, t.plus] for t in made.form.terms]
        form = {"dims": [asdict(d) for d in made.form.dims], "terms": terms}
        formulas = [[i, list(places.items())] for i, places in made.formulas.items()]
        return {"key": self.key(made.key), "form": form, "formulas": formulas, **self.part(made.part)}

    def key(self, key: tuple[Any, ...]) -> list[Any]:
        """The key as JSON."""
        frozen, *entries = key
        out: list[Any] = [sorted(frozen)]
        for e in entries:
            if isinstance(e, EmbeddedConstant):
                out.append(["constant", self.arrays.add(e.array)])
            elif isinstance(e, tuple) and e[0] == "list":
                out.append(["list", *[DTYPES[d] if isinstance(d, np.dtype) else d for d in e[1:]]])
            elif isinstance(e, tuple):
                out.append(["array", DTYPES[e[0]], e[1], None if e[2] is None else e[2].hex()])
            else:
                out.append(["none"])
        return out

    def part(self, part: SpecializedSubgraph) -> dict[str, object]:
        made: dict[str, object] = {
            "feeds": part.feeds,
            "results": part.results,
            "constants": [self.arrays.add(c.array) for c in part.constants],
            "actions": [{**asdict(a), "attributes": _json(a.attributes)} for a in part.actions],
            "seconds": part.seconds,
            "following": None,
            "program": None,
        }
        if part.following is not None:
            made["following"] = [part.following.todo, sorted(part.following.start)]
        if part.executable is not None:
            made["program"] = self.program(part.executable)
        return made

    def program(self, executable: Executable) -> dict[str, object]:
        """A native program; its code and constants are entries of the package of their own."""
        package = executable.package
        number = len(self.levels)
        self.levels[str(number)] = package.levels
        for name, data in package.objects.items():
            self.blobs[f"{number}/{name}"] = data
        return {
            "number": number,
            "target": package.target,
            "description": package.description,
            "program": package.program.to_json(),
            "objects": list(package.objects),
            "constants": [self.arrays.add(c) for c in package.constants],
            "report": package.report,
        }

    def write(self, f: IO[bytes], dynamic: dict[str, object]) -> None:
        objects, weights, size, place = {}, [], 0, 0
        for name, data in self.blobs.items():
            objects[name] = [size, len(data)]
            size += align_up(len(data))
        for a in self.arrays.arrays:
            weights.append([place, DTYPES[a.dtype], a.shape])
            place += align_up(a.nbytes)
        manifest = {"dynamic": dynamic, "objects": objects, "weights": weights}
        container.write_file(f, manifest, self.blobs.values(), self.arrays.arrays, self.levels)


def _json(attributes: Mapping[str, object]) -> dict[str, object]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


# ---- reading ----


def load(
    file: MappedFile, threads: int | None, check: Callable[[str, dict[str, Any]], None]
) -> DynamicExecutable | None:
    """The executable in a file that `save` wrote, None for files of other kinds; PackageError if it is damaged."""
    path, data = file.path, file.view
    if len(data) < container._HEAD.size:
        return None  # `Package.load` says what is wrong
    with container.readable(path):
        manifest = container._manifest(path, data)
        if "dynamic" not in manifest:
            return None
        executable = _Reader(path, data, manifest, check).executable(threads)
        executable.staged.files = lambda: (file,)
        return executable


class _Reader:
    def __init__(
        self,
        path: Path,
        data: memoryview,
        manifest: dict[str, Any],
        check: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.dynamic, self.check = manifest["dynamic"], check
        objects, weights, levels = container._sections(path, data, manifest["sections"])
        self.levels = json.loads(zlib.decompress(levels))
        self.blobs = {n: bytes(objects[at : at + size]) for n, (at, size) in manifest["objects"].items()}
        self.arrays = [_array(weights, *where) for where in manifest["weights"]]

    def executable(self, threads: int | None) -> DynamicExecutable:
        from .dynamic import DynamicExecutable

        d, pool = self.dynamic, ConstantPool()
        options = Options.restore({"specializations": d["limit"], **d["options"]})
        asked, threads = options.threads, threads if threads is not None else threads_of(d["options"])
        options = replace(options, threads=threads)
        base.recorded(options.target)  # what is compiled later is for a target that a package may name
        kept = {n: self.arrays[i] for n, i in d["source"]["arrays"].items()}
        stored = StoredSource(d["source"]["kind"], self.blobs["source"], kept, d["source"]["bodies"])
        lazy = LazySource(stored, options, d["name"], pool)
        inputs, outputs = (
            [
                DynamicInfo(t["name"], None if t["shape"] is None else tuple(t["shape"]), t["dtype"], t["kind"])
                for t in ts
            ]
            for ts in (d["inputs"], d["outputs"])
        )
        executable = DynamicExecutable(
            lazy.source,
            lazy.build,
            inputs,
            outputs,
            lazy.store,
            name=d["name"],
            options=options,
        )
        executable.options["threads"] = asked
        executable.staged.opens = lazy.opens
        if options.specialize in ("open", "background") and not options.buckets:
            executable.open_versions = open_versions = OpenVersions(executable, lazy.open)
            open_versions.versions.open = [self.open_program(p, inputs, threads, pool) for p in d.get("opening", ())]
            if options.specialize == "background":
                for program in open_versions.programs:
                    lazy.resume(program)
        self.bodies(executable.staged, threads, pool)
        return executable

    def bodies(self, staged: Staged, threads: int, pool: ConstantPool) -> None:
        """Stages first, so that parts can name those that follow them; then keys, which may name constants of parts."""
        made: dict[tuple[object, ...], SpecializedSubgraph] = {}
        for b in self.dynamic["bodies"]:
            i = b["info"]
            types = tuple((t, None if dims is None else tuple(dims)) for t, dims in i["types"])
            info = BodyInfo(i["id"], tuple(i["inputs"]), tuple(i["outputs"]), i["nodes"], types)
            body = staged.bodies[info.id] = PartitionedBody(info)
            for s in b["stages"]:
                stage = staged.add(body, tuple(s["todo"]), frozenset(s["start"]), tuple(s["reads"]))
                stage.frozen = frozenset(s["frozen"])
        places = [
            (body, s, stage, p, data)
            for b in self.dynamic["bodies"]
            for body in [staged.bodies[b["info"]["id"]]]
            for s, (stage, stored) in enumerate(zip(body.stages.values(), b["stages"], strict=True))
            for p, data in enumerate(stored["parts"])
        ]
        for body, s, stage, p, data in places:
            made[body.info.id, s, p] = self.part(data, stage, threads, pool)
        for body, s, stage, p, data in places:
            key = self.key(data["key"], made)
            stage.parts[key] = made[body.info.id, s, p]
            stage.parts.saw(key)
        for b in self.dynamic["bodies"]:
            for stage, stored in zip(staged.bodies[b["info"]["id"]].stages.values(), b["stages"], strict=True):
                for data in stored.get("open", ()):
                    version = self.open_part(data, stage, threads, pool)
                    stage.parts.saw(version.key)
                    stage.parts.widen(version)

    def open_part(self, data: dict[str, Any], stage: Subgraph, threads: int, pool: ConstantPool) -> OpenPart:
        dims = tuple(Dim(**d) for d in data["form"]["dims"])
        terms = tuple(Term(*map(int, t)) if isinstance(t, list) else int(t) for t in data["form"]["terms"])
        formulas = {int(i): {int(at): text for at, text in places} for i, places in data["formulas"]}
        return OpenPart(
            self.key(data["key"], {}), SizePattern(dims, terms), self.part(data, stage, threads, pool), formulas
        )

    def program(self, p: dict[str, Any], threads: int, pool: ConstantPool) -> Executable:
        self.check(p["target"], p["description"])
        program = Program.from_json(p["program"])
        shared = [pool.share(t.name, self.arrays[i]) for t, i in zip(program.constants, p["constants"], strict=True)]
        number = p["number"]
        objects = {n: self.blobs[f"{number}/{n}"] for n in p["objects"]}
        levels = self.levels[str(number)]
        return make(Package(p["target"], p["description"], program, objects, shared, levels, p["report"]), threads)

    def open_program(
        self, p: dict[str, Any], inputs: Sequence[DynamicInfo], threads: int, pool: ConstantPool
    ) -> OpenExecutable:
        """One for all sizes; ValueError for another one."""
        made = self.program(p, threads, pool)
        if not isinstance(made, OpenExecutable) or [t.name for t in made.inputs] != [t.name for t in inputs]:
            raise ValueError("a program for all sizes takes other inputs")
        return made

    def part(self, data: dict[str, Any], stage: Subgraph, threads: int, pool: ConstantPool) -> SpecializedSubgraph:
        executable = None if data["program"] is None else self.program(data["program"], threads, pool)
        actions = tuple(
            Action(
                BEFORE.get(a["kind"], a["kind"]),
                a["name"],
                tuple(a["inputs"]),
                tuple(a["outputs"]),
                {BEFORE.get(k, k): v for k, v in a["attributes"].items()},
                tuple(a["bodies"]),
                a["node"],
            )
            for a in data["actions"]
        )
        constants = [self.arrays[i] for i in data["constants"]]
        plan = SubgraphPlan(None, tuple(data["feeds"]), data["results"], constants, actions)
        following = None
        if data["following"] is not None:
            todo, start = data["following"]
            following = stage.body.stages[tuple(todo), frozenset(start)]
        return SpecializedSubgraph(plan, executable, following, data["seconds"])

    def key(self, key: list[Any], made: Mapping[tuple[object, ...], SpecializedSubgraph]) -> tuple[object, ...]:
        frozen, *entries = key
        return (frozenset(frozen), *[self.key_entry(e, made) for e in entries])

    def key_entry(self, e: Sequence[Any], made: Mapping[tuple[object, ...], SpecializedSubgraph]) -> object:
        if e[0] == "constant":
            return EmbeddedConstant(self.arrays[e[1]])
        if e[0] == "const":  # in files of before: by the part that it came from
            body, s, p, i = e[1]
            return made[body, s, p].constants[i]
        if e[0] == "list":
            return ("list", *[NUMPY[d] if isinstance(d, str) else d for d in e[1:]])
        if e[0] == "array":
            return (NUMPY[e[1]], tuple(e[2]), None if e[3] is None else bytes.fromhex(e[3]))
        return None


def _array(weights: memoryview, offset: int, dtype: str, shape: Sequence[int]) -> np.ndarray:
    kind, count = NUMPY[dtype], int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(weights, np.uint8, count * kind.itemsize, offset) if count else np.empty(0, np.uint8)
    return raw.view(kind).reshape(tuple(shape))
