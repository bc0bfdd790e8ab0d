"""Layers that run row by row on targets with little memory: the arena's size, and the C under sanitizers."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import tilewright as tw

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DRIVER = """\
#include <stdio.h>
#include <stdlib.h>
#include "{n}.h"

static {kind} in[{inputs}], out[{outputs}];

int main(void)
{{
    unsigned char *whole = malloc({N}_ARENA_SIZE + {N}_ARENA_ALIGN); /* so that every byte beyond it is an error */
    unsigned char *arena = whole + ({N}_ARENA_ALIGN - (uintptr_t)whole % {N}_ARENA_ALIGN) % {N}_ARENA_ALIGN;
    while (fread(in, sizeof(in), 1, stdin) == 1) {{
        size_t i;
        for (i = 0; i < {N}_ARENA_SIZE; ++i)
            arena[i] = 0xaa;
        if ({n}_run(arena, {N}_ARENA_SIZE, in, out) != {N}_OK)
            return 1;
        fwrite(out, sizeof(out), 1, stdout);
    }}
    free(whole);
    return 0;
}}
"""


def sizes(model, **options):
    programs = [tw.compile(model, target="c", stream=s, **options).package.program for s in (False, True)]
    return [p.arena_size for p in programs]


@pytest.mark.parametrize(("name", "factor"), [("kws_dscnn", 2.0), ("tiny_mobilenet", 3.6), ("tiny_resnet8", 1.4)])
def test_arenas_of_int8_models(name, factor, int8_model):
    whole, streamed = sizes(int8_model(name)[0])
    assert whole >= factor * streamed


@pytest.mark.parametrize(("name", "factor"), [("kws_dscnn", 2.0), ("tiny_mobilenet", 3.6), ("tiny_resnet8", 1.7)])
def test_arenas_of_float_models(name, factor, case):
    whole, streamed = sizes(case(name).path)
    assert whole >= factor * streamed


def test_the_autoencoder_has_no_rows(int8_model):
    whole, streamed = sizes(int8_model("tiny_ae")[0])
    assert whole == streamed


@pytest.mark.parametrize("name", ["kws_dscnn", "tiny_resnet8"])
def test_random_inputs_under_sanitizers(name, need, int8_model, tmp_path):
    need("gcc")
    model, _ = int8_model(name)
    executable = tw.compile(model, target="c")
    executable.export(tmp_path)
    n, x, y = executable.package.report["model"], executable.inputs[0], executable.outputs[0]
    fields = {"n": n, "N": n.upper(), "kind": "int8_t", "inputs": np.prod(x.shape), "outputs": np.prod(y.shape)}
    (tmp_path / "driver.c").write_text(DRIVER.format(**fields))
    command = ["gcc", *STRICT, *SANITIZE, "-o", "driver", f"{n}.c", f"{n}_weights.c", "driver.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    inputs = np.random.default_rng(5).integers(-128, 128, (40, *x.shape)).astype(np.int8)
    done = subprocess.run([str(tmp_path / "driver")], input=inputs.tobytes(), capture_output=True, check=True)
    host = tw.compile(model)
    expected = np.stack([host(a)[0].copy() for a in inputs])
    np.testing.assert_array_equal(np.frombuffer(done.stdout, np.int8).reshape(expected.shape), expected)
