"""Damaged, foreign and misplaced packages: always a PackageError that says what is wrong, never a crash."""

import dataclasses
import json
import random
import struct

import pytest
from support.forged import rewrite

from tilewright.program import package as module
from tilewright.program.package import MAGIC, Package
from tilewright.runtime.executable import Executable
from tilewright.runtime.load import load
from tilewright.support.errors import PackageError, UsageError
from tilewright.targets.cpu.description import host


@pytest.fixture
def path(small_package, tmp_path):
    small_package.save(tmp_path / "m.tw")
    return tmp_path / "m.tw"


def test_not_a_package(tmp_path):
    path = tmp_path / "m.tw"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(PackageError) as e:
        load(path)
    assert str(e.value) == (
        f"{path} is not a Tilewright package\n  stage: load\n  hint: make one with tilewright compile"
    )


def test_no_such_file_and_a_folder(tmp_path):
    with pytest.raises(PackageError, match=r"cannot read .*none\.tw: No such file or directory"):
        load(tmp_path / "none.tw")
    with pytest.raises(PackageError, match=r"cannot read .*: it is no regular file"):
        load(tmp_path)


def test_another_format_version(path):
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, len(MAGIC), 99)
    path.write_bytes(data)
    with pytest.raises(PackageError, match=r"has package format 99, this Tilewright \(.*\) reads format 3"):
        load(path)


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.3, 0.6, 0.9, 0.999])
def test_truncated(path, part):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(PackageError, match=r"m\.tw is damaged: it is (truncated|too short)"):
        load(path)


@pytest.mark.parametrize("seed", range(60))
def test_any_changed_bit_is_noticed_or_harmless(path, seed):
    """Harmless: a bit in the padding between sections, where the package still reads as before."""
    rng = random.Random(seed)
    data = bytearray(path.read_bytes())
    at = rng.randrange(module._HEAD.size) if seed < 20 else rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    before = Package.load(path)
    path.write_bytes(data)
    try:
        after = Package.load(path)
    except PackageError:
        return
    assert data[at] in (1, 2, 4, 8, 16, 32, 64, 128)  # it was a zero of the padding
    assert after.program == before.program and after.objects == before.objects


def test_bits_of_each_section_are_noticed(path):
    data = path.read_bytes()
    _, _, _, offset, length = module._HEAD.unpack_from(data)
    manifest = json.loads(data[offset : offset + length])
    for name, section in manifest["sections"].items():
        changed = bytearray(data)
        changed[section["offset"] + section["size"] // 2] ^= 4
        path.write_bytes(changed)
        with pytest.raises(PackageError, match=f"is damaged: the checksum of section '{name}' is wrong"):
            load(path)
    changed = bytearray(data)
    changed[offset + 5] ^= 4
    path.write_bytes(changed)
    with pytest.raises(PackageError, match="is damaged: the checksum of its manifest is wrong"):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("program"),
        lambda m: m.update(sections=5),
        lambda m: m["program"]["calls"][0]["args"][0].__setitem__(2, 1 << 40),
        lambda m: m["program"]["calls"][0].update(writes=[0]),
        lambda m: m["program"]["constants"][0].update(dtype="f99"),
        lambda m: m.update(weights=[]),
        lambda m: m.update(weights=[1 << 40]),
        lambda m: m["sections"]["weights"]["crc32"].append(0),
    ],
)
def test_inconsistent_manifests(path, change):
    rewrite(path, change)
    with pytest.raises(PackageError, match=r"m\.tw.* is damaged: "):
        load(path)


def test_features_this_machine_lacks_are_named(small_package, tmp_path):
    foreign = dataclasses.replace(host(), features=(*host().features, "avx4096", "warp"))
    small_package.description = foreign.to_json()
    small_package.save(tmp_path / "m.tw")
    with pytest.raises(PackageError) as e:
        load(tmp_path / "m.tw")
    assert "m.tw: this machine lacks CPU features: avx4096, warp" in str(e.value)
    assert "hint: compile the model again on this machine" in str(e.value)


def test_another_architecture(small_package, tmp_path):
    small_package.description = dataclasses.replace(host(), triple="riscv64-unknown-linux-gnu").to_json()
    small_package.save(tmp_path / "m.tw")
    with pytest.raises(PackageError, match="made for riscv64-unknown-linux-gnu, this machine is "):
        load(tmp_path / "m.tw")


def test_a_target_that_is_not_installed(small_package, tmp_path):
    small_package.target = "npu9000"
    small_package.save(tmp_path / "m.tw")
    with pytest.raises(UsageError, match="unknown target 'npu9000'"):
        load(tmp_path / "m.tw")


def test_objects_that_do_not_link(small_package):
    objects = small_package.objects
    small_package.objects = {**objects, "mul": objects["add"]}
    with pytest.raises(PackageError, match="the compiled program does not link: "):
        Executable(small_package, 1)
    del objects["mul"]
    small_package.objects = objects
    with pytest.raises(PackageError, match="there is no code for kernel mul"):
        Executable(small_package, 1)


def test_places_that_cannot_be_written(small_package, tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        small_package.save(tmp_path / "none" / "m.tw")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*: Is a directory"):
        small_package.save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
