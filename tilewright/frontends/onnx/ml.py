"""`ai.onnx.ml` on numbers: scalers, encoders, linear models and support vector machines. Strings and maps are
refused."""

from __future__ import annotations

import numpy as np

from ...ir.types import NUMPY, is_float
from .registry import onnx_op
from .values import OnnxNotImported

DOMAIN = "ai.onnx.ml"
STRINGS = "string tensors are not supported"


@onnx_op("ZipMap", "DictVectorizer", "CastMap", since=1, domain=DOMAIN)
def maps(n, *operands):
    raise OnnxNotImported("maps are not supported")


@onnx_op("CategoryMapper", since=1, domain=DOMAIN)
def category_mapper(n, x):
    raise OnnxNotImported(STRINGS)


# ---- scores to labels ----------------------------------------------------------------------------------------------


def labels_of(n, name):
    labels = n.attr(name)
    if n.attr("classlabels_strings"):
        raise OnnxNotImported(STRINGS)
    if not labels:
        raise n.error(f"attribute {name!r} is missing")
    return np.array(labels, np.int64)


def post_transform(n, scores, kind):
    """NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT over the last dimension."""
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return n("sigmoid", scores)
    if kind == "SOFTMAX":
        return n("softmax", scores, axis=-1)
    if kind == "SOFTMAX_ZERO":  # scores of 0 stay 0
        none = n("equal", scores, 0.0)
        shares = n("softmax", n("where", none, n.constant(np.array(-np.inf, NUMPY[scores.dtype])), scores), axis=-1)
        return n("where", none, n.zero(scores), shares)
    if kind == "PROBIT":  # by ONNX Runtime's approximation of the inverse error function
        log = n("log", n("mul", n("sub", n("mul", scores, -1.0), -1.0), n("mul", scores, 4.0)))
        half = n("add", n("mul", log, 0.5), 2 / (np.pi * 0.147))
        root = n("sqrt", n("sub", n("mul", half, half), n("mul", log, 1 / 0.147)))
        sign = n("sign", n("sub", n("mul", scores, 2.0), 1.0))
        return n("mul", n("mul", sign, n("sqrt", n("sub", root, half))), float(np.sqrt(2)))
    raise n.error(f"post_transform {kind!r} is not known")


def classify(n, scores, labels, kind, *, probabilities=False):
    """Labels and transformed scores. One score for two classes is that of the second: a probability, or a margin around
    0."""
    table = n.constant(labels)
    if scores.shape[1] > 1:
        best = n("arg_max", scores, axis=1, keepdims=False, last=False)
        return [n("gather", table, best, axis=0), post_transform(n, scores, kind)]
    second = n("greater", scores, 0.5 if probabilities else 0.0)
    if len(labels) == 1:
        label = n("where", second, n.constant(labels[0]), n.constant(np.array(0, np.int64)))
        return [n.reshape(label, (scores.shape[0],)), post_transform(n, scores, kind)]
    best = n.cast(n.reshape(second, (scores.shape[0],)), "i64")
    return [n("gather", table, best, axis=0), two_scores(n, scores, kind, probabilities)]


def two_scores(n, score, kind, probabilities):
    """Both scores of two classes from that of the second, as ONNX Runtime completes them (the standard does not
    say)."""
    if kind == "LOGISTIC" or not probabilities:
        both = n.concat([n("neg", score), score], 1)
        return n("sigmoid", both) if kind == "LOGISTIC" else both
    both = n.concat([n("sub", n.constant(np.ones((), np.float32)), score), score], 1)
    return post_transform(n, both, kind) if kind == "PROBIT" else both


# ---- scalers and encoders ------------------------------------------------------------------------------------------


@onnx_op("ArrayFeatureExtractor", since=1, domain=DOMAIN)
def array_feature_extractor(n, x, indices):
    flat = n.reshape(indices, (indices.type.size,))
    out = n("gather", x, flat, axis=x.rank - 1)
    return n.reshape(out, (1, flat.shape[0])) if x.rank == 1 else out


@onnx_op("Binarizer", since=1, domain=DOMAIN)
def binarizer(n, x):
    return n.cast(n("greater", x, n.attr("threshold", 0.0)), x.dtype)


@onnx_op("Scaler", since=1, domain=DOMAIN)
def scaler(n, x):
    width = x.shape[-1] if x.rank else 1
    offset, scale = (
        np.array(n.attr(name) or [default], np.float32) for name, default in (("offset", 0.0), ("scale", 1.0))
    )
    if any(len(v) not in (1, width) for v in (offset, scale)):
        raise n.error(f"offset and scale have one number, or {width}")
    return n("mul", n("sub", n.cast(x, "f32"), n.constant(offset)), n.constant(scale))


@onnx_op("Imputer", since=1, domain=DOMAIN)
def imputer(n, x):
    ints = not is_float(x.dtype)
    values = n.attr("imputed_value_int64s" if ints else "imputed_value_floats")
    gone = n.attr("replaced_value_int64" if ints else "replaced_value_float", 0 if ints else 0.0)
    if not values or len(values) not in (1, x.shape[-1]):
        raise n.error(f"imputed values are one number, or one for each of the {x.shape[-1]} features")
    missing = n("is_nan", x) if not ints and np.isnan(gone) else n("equal", x, gone)
    return n("where", missing, n.constant(np.array(values, NUMPY[x.dtype])), x)


@onnx_op("Normalizer", since=1, domain=DOMAIN)
def normalizer(n, x):
    kind, x, axes = n.attr("norm", "MAX"), n.cast(x, "f32"), (x.rank - 1,)
    if kind == "MAX":
        size = n("reduce_max", x, axes=axes, keepdims=True)
    elif kind in ("L1", "L2"):
        size = n("reduce_l1" if kind == "L1" else "reduce_l2", x, axes=axes, keepdims=True)
    else:
        raise n.error(f"norm {kind!r} is not known")
    return n("where", n("equal", size, 0.0), x, n("div", x, size))


@onnx_op("FeatureVectorizer", since=1, domain=DOMAIN)
def feature_vectorizer(n, *xs):
    parts = [n.cast(n.reshape(x, (1, x.shape[0])) if x.rank == 1 else x, "f32") for x in xs]
    sizes = n.attr("inputdimensions") or [p.shape[1] for p in parts]
    if len(sizes) != len(parts):
        raise n.error(f"{len(sizes)} input dimensions for {len(parts)} inputs")
    cut = []
    for p, size in zip(parts, sizes, strict=True):
        if p.shape[1] >= size:
            cut.append(n.slice(p, 1, 0, size))
        else:
            cut.append(n("pad", p, low=(0, 0), high=(0, size - p.shape[1])))
    return n.concat(cut, 1)


@onnx_op("OneHotEncoder", since=1, domain=DOMAIN)
def one_hot_encoder(n, x):
    categories = n.attr("cats_int64s")
    if n.attr("cats_strings") or not categories:
        raise OnnxNotImported(STRINGS if n.attr("cats_strings") else "without categories")
    if not n.attr("zeros", 1):
        raise OnnxNotImported("with zeros=0, which makes an unknown category an error")
    whole = n.unsqueeze(n.cast(x, "i64"), x.rank)
    return n.cast(n("equal", whole, n.constant(np.array(categories, np.int64))), "f32")


@onnx_op("LabelEncoder", since=2, domain=DOMAIN)
def label_encoder(n, x):
    """A table of keys and values: every element is compared with all keys."""
    sides = {}
    for side in ("keys", "values"):
        for kind, dtype in (("int64s", np.int64), ("floats", np.float32)):
            if n.attr(f"{side}_{kind}"):
                sides[side] = np.array(n.attr(f"{side}_{kind}"), dtype)
        if n.attr(f"{side}_strings"):
            raise OnnxNotImported(STRINGS)
        if n.opset >= 4 and n.attr(f"{side}_tensor") is not None:
            sides[side] = n.attr(f"{side}_tensor").reshape(-1)
    if len(sides) != 2 or len(sides["keys"]) != len(sides["values"]):
        raise n.error("keys and values do not fit each other")
    keys, values = sides["keys"], sides["values"]
    default = n.attr("default_tensor") if n.opset >= 4 else None
    if default is None:
        default = n.attr("default_float", -0.0) if values.dtype.kind == "f" else n.attr("default_int64", -1)
    table = np.append(values, np.array(default, values.dtype).reshape(-1)[:1])
    keys = keys.astype(NUMPY[x.dtype])
    equal = n("equal", n.unsqueeze(x, x.rank), n.constant(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        equal = n("or", equal, n("and", n("is_nan", n.unsqueeze(x, x.rank)), n.constant(np.isnan(keys))))
    # the position of the first key that is equal, or behind the last one
    place = n("where", equal, n.constant(np.arange(len(keys))), n.constant(np.array(len(keys))))
    return n("gather", n.constant(table), n("reduce_min", place, axes=(x.rank,), keepdims=False), axis=0)


# ---- linear models -------------------------------------------------------------------------------------------------


def matrix(n, x):
    x = n.reshape(x, (1, x.shape[0])) if x.rank == 1 else x
    if x.rank != 2:
        raise n.error(f"takes examples [N, F], got {x.type}")
    return n.cast(x, "f32")


def linear(n, x, rows):
    """x times the coefficients, [rows, F] in the attribute, plus the intercepts."""
    weights = np.array(n.required("coefficients"), np.float32)
    if weights.size != rows * x.shape[1]:
        raise n.error(f"{weights.size} coefficients for {rows} scores of {x.shape[1]} features")
    out = n("matmul", x, n.constant(np.ascontiguousarray(weights.reshape(rows, x.shape[1]).T)))
    intercepts = n.attr("intercepts")
    if not intercepts:
        return out
    if len(intercepts) not in (1, rows):
        raise n.error(f"{len(intercepts)} intercepts for {rows} scores")
    return n("add", out, n.constant(np.array(intercepts, np.float32)))


@onnx_op("LinearRegressor", since=1, domain=DOMAIN)
def linear_regressor(n, x):
    return post_transform(n, linear(n, matrix(n, x), n.attr("targets", 1)), n.attr("post_transform", "NONE"))


@onnx_op("LinearClassifier", since=1, domain=DOMAIN)
def linear_classifier(n, x):
    x, labels = matrix(n, x), labels_of(n, "classlabels_ints")
    rows = len(n.required("coefficients")) // max(x.shape[1], 1)
    kind = n.attr("post_transform", "NONE")
    scores = linear(n, x, rows)
    if rows == 1 and len(labels) == 2:
        second = n.cast(n.reshape(n("greater", scores, 0.0), (x.shape[0],)), "i64")
        return [n("gather", n.constant(labels), second, axis=0), two_scores(n, scores, kind, True)]
    return classify(n, scores, labels, kind)


# ---- support vectors -----------------------------------------------------------------------------------------------


def kernel(n, x, vectors):
    """The kernel of every example with every support vector, [N, vectors]."""
    kind = n.attr("kernel_type", "LINEAR")
    gamma, shift, degree = (*(n.attr("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    table = n.constant(np.ascontiguousarray(vectors.T))
    product = n("matmul", x, table)
    if kind == "LINEAR":
        return product
    if kind == "RBF":
        own = n("reduce_sum", n("mul", x, x), axes=(1,), keepdims=True)
        distance = n(
            "sub",
            n("add", own, n.constant((vectors.astype(np.float64) ** 2).sum(1).astype(np.float32))),
            n("mul", product, 2.0),
        )
        return n("exp", n("mul", n("max", distance, 0.0), -gamma))
    scaled = n("add", n("mul", product, gamma), shift)
    if kind == "POLY":
        return n("pow", scaled, degree)
    if kind == "SIGMOID":
        return n("tanh", scaled)
    raise n.error(f"kernel_type {kind!r} is not known")


@onnx_op("SVMRegressor", since=1, domain=DOMAIN)
def svm_regressor(n, x):
    x, weights, count = matrix(n, x), np.array(n.required("coefficients"), np.float32), n.attr("n_supports", 0)
    rho = (n.attr("rho") or [0.0])[0]
    if count:
        vectors = np.array(n.required("support_vectors"), np.float32).reshape(count, -1)
        out = n("matmul", kernel(n, x, vectors), n.constant(weights.reshape(-1, 1)))
    else:
        out = kernel(n, x, weights.reshape(1, -1))
    out = n("add", out, float(rho))
    if n.attr("one_class", 0):
        out = n("where", n("greater", out, 0.0), n.constant(np.float32(1)), n.constant(np.float32(-1)))
    return post_transform(n, out, n.attr("post_transform", "NONE"))


@onnx_op("SVMClassifier", since=1, domain=DOMAIN)
def svm_classifier(n, x):
    raise OnnxNotImported("support vector classifiers have no import function yet")
