"""What notebooks show of executables, profiles, graphs and reports."""

import numpy as np
from onnx import parser

import tilewright as tw
from tilewright.tune.tune_report import TuneReport

MODEL = '<ir_version: 8, opset_import: ["": 18]> m (float[{n}, 4] x) => (y) {{ y = Softmax<axis=-1>(x) }}'


def shown(thing, *parts):
    html = thing._repr_html_()
    assert html.startswith("<div>") and html.endswith("</div>") and all(p in html for p in parts), html


def test_everything_has_one_template(tmp_path):
    made = parser.parse_model(MODEL.format(n=3))
    run = tw.compile(made)
    shown(run, "<table>", "<td>x</td>", "<summary>explain</summary>")
    assert repr(run.explain()) == str(run.explain()) and "\n" in repr(run.explain())
    shown(run.explain(), "<pre>", "levels")
    graph = tw.compile(made, stop_after="import")
    assert repr(graph) == "<Graph of level 2 (x: tensor<3x4xf32>) -> (y: tensor<3x4xf32>), 2 operations, 0 constants>"
    shown(graph, "graph of level 2", "tw.softmax", "<summary>MLIR</summary>")
    profile = run.profile({"x": np.ones((3, 4), "f4")}, repeats=2)
    shown(profile, "<td>kernel</td>", "a run (")
    assert repr(profile) == str(profile)
    shown(tw.compile(parser.parse_model(MODEL.format(n="n"))), "x: f32[n, 4]")
    shown(tw.compile({"a": made, "b": made}), "<td>a</td>", "<td>b</td>", "entry a")
    shown(TuneReport([]), "<pre>")
