"""Arrays of the command line: files, random inputs, comparison."""

import numpy as np
import pytest

from tilewright.cli.data import Allowed, compare, largest_error, random_inputs, read_npz, write_npz
from tilewright.support.errors import CheckError, InputError, UsageError


def test_npz_round_trip(tmp_path):
    arrays = {"a/b": np.arange(6.0).reshape(2, 3), "scalar": np.array(1, np.int64)}
    write_npz(tmp_path / "x.npz", arrays)
    back = read_npz(tmp_path / "x.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 truncated"])
def test_damaged_npz(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read arrays from .*x\.npz"):
        read_npz(tmp_path / "x.npz")


def test_npy_is_not_npz(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(InputError, match="one array without a name"):
        read_npz(tmp_path / "x.npy")


def test_pickled_npz_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{}], object))
    with pytest.raises(InputError, match="cannot read arrays"):
        read_npz(tmp_path / "x.npz")


def test_npz_into_a_missing_folder(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        write_npz(tmp_path / "no" / "x.npz", {})


def test_random_inputs_suit_their_types():
    wanted = [
        ("f", (3, 4), np.dtype("f4")),
        ("i", (50,), np.dtype("i8")),
        ("b", (50,), np.dtype("?")),
        ("u", (), np.dtype("u1")),
    ]
    arrays = random_inputs(wanted, 7)
    assert [(n, a.shape, a.dtype) for n, a in arrays.items()] == wanted
    assert set(arrays["i"].tolist()) == {0, 1}
    again = random_inputs(wanted, 7)
    assert all(np.array_equal(arrays[n], again[n]) for n in arrays)
    assert not np.array_equal(arrays["f"], random_inputs(wanted, 8)["f"])


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [0.0, 1.0], np.inf),
        ([1.0, 1.0], [np.inf, 1.0], np.inf),
        ([], [], 0.0),
        ([0.5], [0.0], 0.5),
    ],
)
def test_largest_error(got, expected, error):
    assert largest_error(np.array(got), np.array(expected)) == pytest.approx(error)


def test_compare_reports_all_outputs_that_differ():
    got = {"a": np.ones(3), "b": np.ones(3), "c": np.ones((1, 3))}
    assert compare(got, {"a": np.ones(3)}, Allowed(0.0)) == [("a", 0.0, 0.0)]
    with pytest.raises(CheckError) as caught:
        compare(got, {"a": np.ones(3), "b": np.full(3, 2.0), "c": np.ones(3)}, Allowed(1e-3))
    assert caught.value.message == (
        "output 'b' differs by 5.00e-01 of its largest value; output 'c' has shape (1, 3), expected (3,)"
    )


def test_compare_with_unknown_outputs():
    with pytest.raises(InputError, match="has no output 'z'"):
        compare({"a": np.ones(1)}, {"z": np.ones(1)}, Allowed(1e-4))
    with pytest.raises(InputError, match="no expected output"):
        compare({"a": np.ones(1)}, {}, Allowed(1e-4))


def test_what_is_allowed_fits_the_precision():
    """Of the compilation, or of an output that is less precise; --rtol stands above both."""
    single, half = np.full(2, 1.1, np.float32), np.full(2, 1.01, np.float16)
    assert compare({"y": single}, {"y": np.ones(2)}, Allowed(None, "bf16"))
    assert compare({"y": half}, {"y": np.ones(2)}, Allowed(None, "f32"))
    for output, given, precision, said in (
        (single, None, "f32", "tolerance 0.0001 for f32 "),
        (single, None, "f16", "tolerance 0.02 for f16 "),
        (single, 1e-3, "bf16", "tolerance 0.001 "),
    ):
        with pytest.raises(CheckError) as caught:
            compare({"y": output}, {"y": np.ones(2)}, Allowed(given, precision))
        assert caught.value.hint.startswith(said)
