"""What is installed is read from its folders; where those do not tell all, `importlib.metadata` is asked."""

import subprocess
import sys
from importlib import metadata

import pytest

from tilewright.support import discovery


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for function in (discovery._infos, discovery._groups):
        function.cache_clear()
    yield
    monkeypatch.undo()
    for function in (discovery._infos, discovery._groups):
        function.cache_clear()


def install(folder, version="1.5.dev2+cpu"):
    info = folder / f"My_plugin.x-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: My-plugin.x\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nx = y:z\n\n[tilewright.rules]\nmine = mine.rule\n")
    return folder


def asked():
    return [e.value for e in discovery.entry_points("tilewright.rules")], discovery.installed_version("my-plugin_X")


def test_a_folder_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(install(tmp_path / "a")), str(install(tmp_path / "b", "2")), *sys.path])
    assert asked() == (["mine.rule"], "1.5.dev2+cpu")
    assert discovery.entry_points("nothing.of.this") == ()
    assert discovery.installed_version("numpy") == metadata.version("numpy")
    with pytest.raises(metadata.PackageNotFoundError):
        discovery.installed_version("no-such-package")


def test_a_finder_of_others(tmp_path, monkeypatch):
    class Finder(metadata.DistributionFinder):
        def find_distributions(self, context=None):
            return iter([metadata.PathDistribution(next(install(tmp_path).iterdir()))])

        def find_spec(self, *_):
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    found = discovery.entry_points("tilewright.rules")
    assert [e.value for e in found] == ["mine.rule"]


def test_an_archive_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "x.zip").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "x.zip"), *sys.path])
    assert discovery._infos() is None
    assert discovery.installed_version("numpy") == metadata.version("numpy")


def test_forked_processes_import_nothing_for_a_kernel():
    """What a kernel takes is there before the first one (`targets.cpu.make`)."""
    code = """
import sys
from tilewright.codegen.llvm import worker
worker.prepare("tilewright.targets.cpu.make")
from tilewright.targets.cpu.make import make_kernel
from tilewright.targets.cpu.description import host
before = set(sys.modules)
make_kernel('''func.func private @k(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %e = tensor.empty() : tensor<8x8xf32>
  %r = linalg.generic {iterator_types = ["parallel", "parallel"], indexing_maps = [affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i, j)>]}
      ins(%a, %b : tensor<8x8xf32>, tensor<8x8xf32>) outs(%e : tensor<8x8xf32>) {
    ^bb0(%x: f32, %y: f32, %z: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}''', host())
assert not {m for m in set(sys.modules) - before if m.startswith("tilewright")}, set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
