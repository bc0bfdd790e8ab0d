"""Dense linear algebra on the host: LAPACK, by NumPy and SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support.errors import InputError
from .registry import on_host

if TYPE_CHECKING:
    import numpy.typing as npt


def lapack(name: str, *arrays: np.ndarray) -> Callable[..., Any]:
    """A function of LAPACK for the type of these arrays."""
    import scipy.linalg

    (found,) = scipy.linalg.get_lapack_funcs((name,), arrays)
    return found


def over_batch(f: Callable[..., Sequence[np.ndarray]], *arrays: np.ndarray, ranks: Sequence[int]) -> list[np.ndarray]:
    """The results of f for every element of a batch: `ranks` are the dimensions that f takes of each array."""
    batch = np.broadcast_shapes(*[a.shape[: a.ndim - r] for a, r in zip(arrays, ranks, strict=True)])
    cores = [a.shape[a.ndim - r :] for a, r in zip(arrays, ranks, strict=True)]
    count = math.prod(batch)
    flat = [np.broadcast_to(a, (*batch, *c)).reshape((count, *c)) for a, c in zip(arrays, cores, strict=True)]
    if not count:  # what f gives tells the shapes
        shapes = [np.asarray(r) for r in f(*[np.ones(c, a.dtype) for a, c in zip(arrays, cores, strict=True)])]
        return [np.zeros((*batch, *s.shape), s.dtype) for s in shapes]
    rows = [[np.asarray(r) for r in f(*items)] for items in zip(*flat, strict=True)]
    return [np.stack(column).reshape((*batch, *column[0].shape)) for column in zip(*rows, strict=True)]


def transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def none(x: np.ndarray) -> np.ndarray:
    """The empty array in place of a result that is not used."""
    return np.zeros(0, x.dtype)


@on_host("higher_order.with_effects(aten._linalg_check_errors)")
def check_errors(token: object, called: object, info: np.ndarray, name: str, *, is_matrix: bool) -> list[Any]:
    """InputError if LAPACK says that it could not compute a result."""
    if np.any(info):
        at = int(np.flatnonzero(np.atleast_1d(info))[0])
        which = "the matrix" if is_matrix else f"matrix {at} of the batch"
        raise InputError(
            f"{name}: {which} is singular, or not of the kind that it takes (LAPACK says {int(np.ravel(info)[at])})",
            stage="run",
        )
    return [np.zeros(0, np.float32), None]


# ---- eigenvalues and singular values -------------------------------------------------------------------------------


@on_host("_linalg_svd")
def svd(
    x: np.ndarray, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> list[np.ndarray]:
    if compute_uv:
        return list(np.linalg.svd(x, full_matrices))
    return [none(x), np.linalg.svd(x, compute_uv=False), none(x)]


@on_host("_linalg_eigh")
def eigh(x: np.ndarray, uplo: Any = "L", compute_v: bool = True) -> list[np.ndarray]:
    return list(np.linalg.eigh(x, uplo)) if compute_v else [np.linalg.eigvalsh(x, uplo), none(x)]


@on_host("linalg_eig")
def eig(x: np.ndarray) -> list[np.ndarray]:
    return list(np.linalg.eig(x))


@on_host("linalg_eigvals", "_linalg_eigvals")
def eigvals(x: np.ndarray) -> np.ndarray:
    return np.linalg.eigvals(x)


@on_host("linalg_pinv.atol_rtol_tensor")
def pinv(
    x: np.ndarray, *, atol: npt.ArrayLike | None = None, rtol: npt.ArrayLike | None = None, hermitian: bool = False
) -> np.ndarray:
    """Singular values up to atol, or rtol times the largest one, count as 0."""
    if not x.size:
        return np.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    u, s, vh = np.linalg.svd(x, full_matrices=False, hermitian=hermitian)
    if rtol is None:
        rtol = 0.0 if atol is not None and np.any(np.asarray(atol) > 0) else max(x.shape[-2:]) * np.finfo(s.dtype).eps
    low = np.maximum(np.asarray(0.0 if atol is None else atol), np.asarray(rtol) * s.max(-1))
    keep = s > low[..., None]
    inverse = np.where(keep, 1 / np.where(keep, s, 1), 0).astype(s.dtype)
    return (transposed(vh.conj()) * inverse[..., None, :]) @ transposed(u.conj())


# ---- factors -------------------------------------------------------------------------------------------------------


@on_host("linalg_qr")
def qr(x: np.ndarray, mode: Any = "reduced") -> list[Any]:
    if mode == "r":
        return [none(x), np.linalg.qr(x, "r")]
    return list(np.linalg.qr(x, mode))


@on_host("geqrf")
def geqrf(x: np.ndarray) -> list[np.ndarray]:
    def one(a: np.ndarray) -> Sequence[np.ndarray]:
        if not a.size:
            return a, np.zeros(min(a.shape), a.dtype)
        found, tau, _, _ = lapack("geqrf", a)(a)
        return found, tau

    return over_batch(one, x, ranks=[2])


@on_host("linalg_householder_product")
def householder_product(x: np.ndarray, tau: np.ndarray) -> np.ndarray:
    def one(a: np.ndarray, t: np.ndarray) -> Sequence[np.ndarray]:
        if not a.size or not t.size:
            return (np.eye(*a.shape, dtype=a.dtype),)
        name = "ungqr" if np.iscomplexobj(a) else "orgqr"
        return (lapack(name, a)(a, t)[0],)

    return over_batch(one, x, tau, ranks=[2, 1])[0]


@on_host("ormqr")
def ormqr(x: np.ndarray, tau: np.ndarray, other: np.ndarray, left: bool = True, transpose: bool = False) -> np.ndarray:
    def one(a: np.ndarray, t: np.ndarray, c: np.ndarray) -> Sequence[np.ndarray]:
        if not c.size or not t.size:
            return (c,)
        name, turn = ("unmqr", "C") if np.iscomplexobj(a) else ("ormqr", "T")
        return (lapack(name, a)("L" if left else "R", turn if transpose else "N", a, t, c, max(1, c.size * 64))[0],)

    return over_batch(one, x, tau, other, ranks=[2, 1, 2])[0]


@on_host("linalg_cholesky_ex")
def cholesky_ex(x: np.ndarray, *, upper: bool = False, check_errors: bool = False) -> list[np.ndarray]:
    def one(a: np.ndarray) -> Sequence[np.ndarray]:
        if not a.size:
            return a, np.array(0, np.int32)
        found, info = lapack("potrf", a)(a, lower=not upper, clean=True)
        return found, np.array(info, np.int32)

    return over_batch(one, x, ranks=[2])


@on_host("cholesky")
def cholesky(x: np.ndarray, upper: bool = False) -> np.ndarray:
    found, info = cholesky_ex(x, upper=upper)
    if np.any(info):
        raise ValueError("a matrix is not positive definite")
    made: np.ndarray = found
    return made


@on_host("cholesky_inverse")
def cholesky_inverse(x: np.ndarray, upper: bool = False) -> np.ndarray:
    return cholesky_solve(np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), x.shape), x, upper)


@on_host("cholesky_solve")
def cholesky_solve(b: np.ndarray, x: np.ndarray, upper: bool = False) -> np.ndarray:
    def one(a: np.ndarray, c: np.ndarray) -> Sequence[np.ndarray]:
        return (lapack("potrs", a)(a, c, lower=not upper)[0],) if a.size and c.size else (c,)

    return over_batch(one, x, b, ranks=[2, 2])[0]


@on_host("linalg_ldl_factor_ex")
def ldl_factor_ex(x: np.ndarray, *, hermitian: bool = False, check_errors: bool = False) -> list[np.ndarray]:
    def one(a: np.ndarray) -> Sequence[np.ndarray]:
        if not a.size:
            return a, np.zeros(len(a), np.int32), np.array(0, np.int32)
        name = "hetrf" if hermitian and np.iscomplexobj(a) else "sytrf"
        found, pivots, info = lapack(name, a)(np.tril(a), lower=1)
        return np.tril(found), pivots.astype(np.int32), np.array(info, np.int32)

    return over_batch(one, x, ranks=[2])


@on_host("linalg_ldl_solve")
def ldl_solve(x: np.ndarray, pivots: np.ndarray, b: np.ndarray, *, hermitian: bool = False) -> np.ndarray:
    def one(a: np.ndarray, p: np.ndarray, c: np.ndarray) -> Sequence[np.ndarray]:
        if not a.size or not c.size:
            return (c,)
        return (_ldl_solve(a, p, c, hermitian),)

    return over_batch(one, x, pivots, b, ranks=[2, 1, 2])[0]


def _ldl_solve(a: np.ndarray, pivots: np.ndarray, c: np.ndarray, hermitian: bool) -> np.ndarray:
    """L D L^T x = c with the factors and exchanges of `sytrf` (lower), block by block."""
    size, c = len(a), c.copy()

    def turn(v: np.ndarray) -> np.ndarray:
        return v.conj() if hermitian else v

    blocks, k = [], 0
    while k < size:
        two = pivots[k] < 0
        blocks.append((k, 2 if two else 1, abs(int(pivots[k + 1 if two else k])) - 1))
        k += 2 if two else 1
    for k, width, other in blocks:
        last = k + width - 1
        c[[last, other]] = c[[other, last]]
        c[k + width :] -= a[k + width :, k : k + width] @ c[k : k + width]
        d = a[k : k + width, k : k + width].copy()
        if width == 2:
            d[0, 1] = turn(d[1, 0])
        c[k : k + width] = np.linalg.solve(d, c[k : k + width])
    for k, width, other in reversed(blocks):
        c[k : k + width] -= turn(a[k + width :, k : k + width]).T @ c[k + width :]
        last = k + width - 1
        c[[last, other]] = c[[other, last]]
    return c


# ---- LU, systems of equations --------------------------------------------------------------------------------------


@on_host("linalg_lu_factor_ex")
def lu_factor_ex(x: np.ndarray, *, pivot: bool = True, check_errors: bool = False) -> list[np.ndarray]:
    if not pivot:
        raise ValueError("without pivots")

    def one(a: np.ndarray) -> Sequence[np.ndarray]:
        if not a.size:
            return a, np.zeros(min(a.shape), np.int32), np.array(0, np.int32)
        found, pivots, info = lapack("getrf", a)(a)
        return found, (pivots + 1).astype(np.int32), np.array(info, np.int32)

    return over_batch(one, x, ranks=[2])


@on_host("lu_unpack")
def lu_unpack(
    lu: np.ndarray, pivots: np.ndarray, unpack_data: bool = True, unpack_pivots: bool = True
) -> list[np.ndarray]:
    rows, columns = lu.shape[-2:]
    k = min(rows, columns)
    lower, upper, order = none(lu), none(lu), none(lu)
    if unpack_data:
        lower = np.tril(lu[..., :k], -1) + np.eye(rows, k, dtype=lu.dtype)
        upper = np.triu(lu[..., :k, :])
    if unpack_pivots:
        (order,) = over_batch(lambda p: (_permutation(p, rows).astype(lu.dtype),), pivots, ranks=[1])
    return [order, lower, upper]


def _permutation(pivots: np.ndarray, rows: int) -> np.ndarray:
    """The matrix P of P L U, by the exchanges of LAPACK."""
    order = np.arange(rows)
    for i, p in enumerate(pivots.astype(int) - 1):
        order[[i, p]] = order[[p, i]]
    return np.eye(rows)[:, np.argsort(order)].T if rows else np.zeros((0, 0))


@on_host("linalg_lu")
def lu(x: np.ndarray, *, pivot: bool = True) -> list[np.ndarray]:
    found, pivots, _ = lu_factor_ex(x, pivot=pivot)
    return lu_unpack(found, pivots)


@on_host("linalg_lu_solve")
def lu_solve(
    lu: np.ndarray, pivots: np.ndarray, b: np.ndarray, *, left: bool = True, adjoint: bool = False
) -> np.ndarray:
    if not left:  # X A = B is A^T X^T = B^T
        conjugate = np.conj if adjoint else np.asarray
        return transposed(conjugate(lu_solve_kind(lu, pivots, transposed(conjugate(b)), 0 if adjoint else 1)))
    return lu_solve_kind(lu, pivots, b, 2 if adjoint else 0)


def lu_solve_kind(lu: np.ndarray, pivots: np.ndarray, b: np.ndarray, kind: int) -> np.ndarray:
    """`kind` is 0 for A, 1 for its transpose, 2 for its adjoint."""

    def one(a: np.ndarray, p: np.ndarray, c: np.ndarray) -> Sequence[np.ndarray]:
        return (lapack("getrs", a)(a, p - 1, c, kind)[0],) if a.size and c.size else (c,)

    return over_batch(one, lu, pivots, b, ranks=[2, 1, 2])[0]


@on_host("_linalg_solve_ex")
def solve_ex(x: np.ndarray, b: np.ndarray, *, left: bool = True, check_errors: bool = False) -> list[np.ndarray]:
    factors, pivots, info = lu_factor_ex(x)
    vector = b.ndim == 1 or (b.ndim == x.ndim - 1 and b.shape == x.shape[:-1])
    made = lu_solve(factors, pivots, b[..., None] if vector else b, left=left)
    return [made[..., 0] if vector else made, factors, pivots, info]


@on_host("linalg_inv_ex")
def inv_ex(x: np.ndarray, *, check_errors: bool = False) -> list[np.ndarray]:
    factors, pivots, info = lu_factor_ex(x)
    eye = np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), x.shape)
    return [lu_solve(factors, pivots, eye), info]


@on_host("_linalg_det")
def det(x: np.ndarray) -> list[np.ndarray]:
    factors, pivots, _ = lu_factor_ex(x)
    return [np.linalg.det(x), factors, pivots]


@on_host("_linalg_slogdet")
def slogdet(x: np.ndarray) -> list[np.ndarray]:
    factors, pivots, _ = lu_factor_ex(x)
    return [*np.linalg.slogdet(x), factors, pivots]


@on_host("linalg_solve_triangular")
def solve_triangular(
    x: np.ndarray, b: np.ndarray, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> np.ndarray:
    if not left:
        return transposed(solve_triangular(transposed(x), transposed(b), upper=not upper, unitriangular=unitriangular))

    def one(a: np.ndarray, c: np.ndarray) -> Sequence[np.ndarray]:
        return (lapack("trtrs", a)(a, c, lower=not upper, unitdiag=unitriangular)[0],) if a.size and c.size else (c,)

    return over_batch(one, x, b, ranks=[2, 2])[0]


@on_host("triangular_solve")
def triangular_solve(
    b: np.ndarray, x: np.ndarray, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> list[np.ndarray]:
    a = transposed(x).conj() if transpose else x
    found = solve_triangular(a, b, upper=upper != transpose, unitriangular=unitriangular)
    return [found, np.broadcast_to(x, (*found.shape[:-2], *x.shape[-2:]))]


@on_host("linalg_matrix_exp")
def matrix_exp(x: np.ndarray) -> np.ndarray:
    import scipy.linalg

    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    made: np.ndarray = scipy.linalg.expm(wide) if x.size else x
    return made
