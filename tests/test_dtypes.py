"""ggml's types: lookup, sizes, and conversions held against the gguf package's own."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from pyggml import ShapeError
from pyggml.dtypes import DTYPES, dequantize, dtype, nbytes, quantize

RNG = np.random.default_rng(3)
VALUES = RNG.standard_normal((6, 512), np.float32)
ACTIVATIONS = ("q8_1", "q8_k")
QUANTIZED = [t.name for t in DTYPES if t.is_quantized and t.name not in ACTIVATIONS]
NOT_IN_GGUF_PACKAGE = ("q1_0", "q2_0")
# Root mean square error over the values' own, which are normal: generous bounds for each width.
MAX_ERROR = {"q2_0": 0.75, "q8": 0.01, "q6": 0.03, "q5": 0.06, "q4": 0.12, "q3": 0.2, "q2": 0.4, "q1": 0.9}
MAX_ERROR |= {"iq4": 0.12, "iq3": 0.3, "iq2": 0.5, "iq1": 0.75, "tq": 0.9, "mxfp4": 0.2, "nvfp4": 0.15}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("q4_k", "q4_k"),
        ("Q4_K", "q4_k"),
        (12, "q4_k"),
        (0, "f32"),
        (np.float32, "f32"),
        (np.dtype("<f2"), "f16"),
        ("bf16", "bf16"),
        (np.int32, "i32"),
        (dtype("q8_0"), "q8_0"),
    ],
)
def test_a_type_is_found_by_name_number_or_numpy_type(asked: Any, name: str) -> None:
    assert dtype(asked).name == name
    assert dtype(asked) is dtype(name)


@pytest.mark.parametrize("asked", ["q9_9", 4, 9999, -1, np.uint8, np.complex64, None, ""])
def test_a_type_that_does_not_exist_is_refused_with_those_that_do(asked: Any) -> None:
    with pytest.raises(ShapeError, match="there are f32, f16, q4_0.*bf16"):
        dtype(asked)


def test_block_and_type_sizes_are_those_of_the_gguf_package() -> None:
    packages = {n.name.lower(): size for n, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {t.name: (t.block_size, t.type_size) for t in DTYPES}
    stored = [name for name in packages if name not in ACTIVATIONS]
    assert {name: ours[name] for name in stored} == {name: packages[name] for name in stored}


@pytest.mark.parametrize(
    ("shape", "kind", "n_bytes"),
    [
        ((3, 64), "q8_0", 204),
        ((2, 3, 5), "f16", 60),
        ((), "f32", 4),
        ((0, 32), "q4_0", 0),
        ((256,), "q6_k", 210),
    ],
)
def test_sizes_of_tensors(shape: tuple[int, ...], kind: str, n_bytes: int) -> None:
    assert nbytes(shape, kind) == n_bytes


@pytest.mark.parametrize(
    "kind", ["bf16", "f16", "f32", *(k for k in QUANTIZED if k not in NOT_IN_GGUF_PACKAGE)]
)
def test_values_are_dequantised_as_the_gguf_package_does(kind: str) -> None:
    raw = quantize(VALUES, kind, imatrix=np.ones(512))
    wanted = gguf.dequantize(raw.reshape(6, -1), getattr(gguf.GGMLQuantizationType, kind.upper()))
    assert np.allclose(
        dequantize(raw, kind, VALUES.shape), wanted.reshape(VALUES.shape), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantised_values_are_near_the_originals(kind: str) -> None:
    found = dequantize(quantize(VALUES, kind, imatrix=np.ones(512)), kind, VALUES.shape)
    bound = next(error for start, error in MAX_ERROR.items() if kind.startswith(start))
    error = float(np.sqrt(np.mean((found - VALUES) ** 2)))
    assert 0 < error < bound


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "bf16"])
def test_quantising_gives_the_gguf_packages_bytes(kind: str) -> None:
    wanted = gguf.quantize(VALUES, getattr(gguf.GGMLQuantizationType, kind.upper()))
    differing = quantize(VALUES, kind) != np.asarray(wanted).view(np.uint8).reshape(-1)
    assert differing.mean() < 0.001  # roundings of halves may differ


@pytest.mark.parametrize("kind", ["q4_0", "q6_k", "iq4_xs"])
@pytest.mark.parametrize("n_threads", [2, 3, 64])
def test_threads_change_no_byte(kind: str, n_threads: int) -> None:
    assert np.array_equal(quantize(VALUES, kind, n_threads=n_threads), quantize(VALUES, kind))


def test_the_importance_matrix_has_an_influence() -> None:
    weights = np.where(np.arange(512) < 256, 100, 0.01)
    plain, weighted = (
        np.abs(dequantize(quantize(VALUES, "q3_k", imatrix), "q3_k", VALUES.shape) - VALUES)
        for imatrix in (None, weights)
    )
    assert not np.array_equal(plain, weighted)


def test_integers_and_halves_keep_their_layout() -> None:
    numbers = np.arange(-3, 3, dtype=np.int32)
    assert quantize(numbers, "i32").view(np.int32).tolist() == numbers.tolist()
    assert quantize([1.5, -2.0], "f16").view(np.float16).tolist() == [1.5, -2.0]
    assert quantize(np.array([-np.inf], np.float32), "f16").view(np.float16)[0] == -np.inf
    assert dequantize(quantize(numbers, "i64"), "i64", (6,)).tolist() == numbers.tolist()


def test_views_with_gaps_are_quantised_by_value() -> None:
    wanted = quantize(np.ascontiguousarray(VALUES[::2, :256]), "q4_k")
    assert np.array_equal(quantize(VALUES[::2, :256], "q4_k"), wanted)


@pytest.mark.parametrize(
    ("values", "kind", "imatrix", "problem"),
    [
        (np.zeros((2, 33)), "q8_0", None, "rows of 33.*q8_0.*32"),
        (np.zeros(256), "iq2_xxs", None, "iq2_xxs needs an importance matrix"),
        (np.zeros(256), "iq1_s", None, "iq1_s needs an importance matrix"),
        (np.zeros(256), "q4_k", np.ones(255), r"must be \(256,\)"),
        (np.zeros(256), "q4_k", -np.ones(256), "from 0 to 1e\\+20"),
        (np.zeros(256), "iq2_xs", np.full(256, 1e30), "from 0 to 1e\\+20"),
        (np.zeros(256), "q8_k", None, "q8_k is for activations"),
        (np.zeros(32), "q8_1", None, "q8_1 is for activations"),
        (np.full(32, np.nan), "q4_0", None, "NaN"),
        (np.full(32, np.inf), "q8_0", None, "up to 65504"),
        (np.full(256, 1e37), "iq3_s", None, "up to 65504"),
        (np.array([70000.0]), "f16", None, "too large for f16"),
        (np.array([1.5]), "i32", None, "float64 values cannot become i32"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    values: np.ndarray, kind: str, imatrix: Any, problem: str
) -> None:
    with pytest.raises(ShapeError, match=problem):
        quantize(values, kind, imatrix)


# Beyond these bounds some of ggml's quantisers abort the process; up to them none may.
@pytest.mark.parametrize("kind", QUANTIZED)
def test_the_largest_values_and_weights_allowed_do_not_abort(kind: str) -> None:
    signs = np.sign(RNG.standard_normal((2, 256)))
    for scale in (65504, 1e-10, 1e-42, 0):
        for weight in (1e20, 1, 1e-30, 0):
            raw = quantize(signs * scale, kind, imatrix=np.full(256, weight))
            assert raw.nbytes == nbytes((2, 256), kind)


@pytest.mark.parametrize(
    ("n_bytes", "kind", "shape", "problem"),
    [
        (33, "q8_0", (1, 32), "takes 34 bytes; 33 were given"),
        (36, "q8_1", (1, 32), "q8_1 is for activations"),
        (34, "q8_0", (1, 31), "rows of 31"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(
    n_bytes: int, kind: str, shape: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(ShapeError, match=problem):
        dequantize(np.zeros(n_bytes, np.uint8), kind, shape)


def test_tensors_without_elements_convert() -> None:
    assert quantize(np.zeros((0, 32)), "q8_0").size == 0
    assert dequantize(np.zeros(0, np.uint8), "q4_k", (0, 256)).shape == (0, 256)
