"""The source of the fused products, run on a processor whose threads are fibers: right for every type and shape.

Ordering between threads is the kernel's own; every other copy arrives only when it is waited for. Tensor
cores are spelled out.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from emulation import compile_emulated, run_emulated

SOURCES = (
    "product*.cuh",
    "product*.h",
    "expert*.cuh",
    "expert*.h",
    "router*",
    "wide_products.cuh",
    "rounded_input.*",
    "weight_blocks.cuh",
    "weight_boxes.h",
    "q6_k_blocks.cuh",
    "nibble_blocks.cuh",
    "tensor_cores.cuh",
    "warp_sums.cuh",
)
# Sums of some thousand products in float32, against float64; a value on the edge between two roundings counts most.
LIMIT = 1e-7

TYPES = ("q8_0", "q4_k", "q5_k", "q6_k", "q4_0", "q4_1", "mxfp4")
SMALL_BLOCKS = ("q8_0", "q4_0", "q4_1", "mxfp4")
KINDS = ("alone", "normed", "normed-added", "bias-residual", "normed-gate")
pytestmark = pytest.mark.timeout(600)  # the first one compiles the programs
CASES = [
    *((kind_of, n, 512, 40, kind, 2) for kind_of in TYPES for n in (1, 3, 8, 16) for kind in KINDS),
    *((kind_of, n, 512, 40, "normed-gate", 2) for kind_of in TYPES for n in (2, 4, 9)),
    *((kind_of, n, 1280, rows, "residual", 3) for kind_of in TYPES for n in (1, 5, 13) for rows in (17, 101)),
    *(
        (kind_of, n, k, 35, "normed", 2)
        for kind_of in SMALL_BLOCKS
        for n in (1, 3, 8, 12)
        for k in (64, 576, 1088)
    ),
    *((kind_of, n, 96, 35, "normed", 2) for kind_of in SMALL_BLOCKS[1:] for n in (1, 8, 16)),
    *((kind_of, n, 512, 700, "bias-residual", 1) for kind_of in TYPES for n in (2, 9)),  # many tiles a block
    # More columns than shared memory holds.
    *((kind_of, 16, 9216, 33, "residual", 1) for kind_of in TYPES),
    ("q8_0", 2, 4352, 16, "normed-gate", 1),
    ("q8_0", 16, 8192, 40, "normed-gate", 1),
    ("q8_0", 8, 28672, 16, "residual", 1),
    ("q8_0", 3, 40960, 16, "residual", 1),
    ("q6_k", 2, 81920, 16, "residual", 1),
    ("q8_0", 16, 14400, 50, "alone", 1),
    ("q4_k", 1, 8192, 16, "normed", 2),
    ("q5_k", 1, 17408, 16, "residual", 2),
]


# Tokens, experts a token, weights, rows, kind, processors.
EXPERT_CASES = [
    *(
        (kind_of, n, used, 512, 40, kind, 2)
        for kind_of in TYPES
        for n, used in ((1, 4), (3, 2))
        for kind in ("gate", "sum")
    ),
    *(
        (kind_of, 2, 3, k, 35, kind, 3)
        for kind_of in SMALL_BLOCKS
        for k in (64, 576)
        for kind in ("gate", "sum")
    ),
    *((kind_of, n, 8, 256, 101, "sum-residual", 2) for kind_of in TYPES for n in (1, 4)),
    ("mxfp4", 4, 1, 96, 17, "sum", 2),
    ("q4_k", 1, 2, 4352, 16, "sum", 1),
    ("q4_k", 2, 8, 1536, 24, "sum", 2),
]


# Of one column a card of 9.0 takes weights as boxes: units whole, rows at multiples of 16 bytes or not.
BOX_CASES = [
    *(case for case in CASES if case[1] == 1),
    *((kind_of, 1, 2048, rows, kind, 3) for kind_of in TYPES for rows in (19, 101) for kind in KINDS),
    *((kind_of, 1, 2048, 24, "normed-gate-swapped", 2) for kind_of in TYPES),
    *((kind_of, 1, 512, 1900, "residual", 1) for kind_of in TYPES),  # many tiles, whose sums take turns
]


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("products", SOURCES, tmp_path_factory.mktemp("products"))


@pytest.fixture(scope="module")
def boxed_products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("products", SOURCES, tmp_path_factory.mktemp("boxed"), capability=90)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("experts", SOURCES, tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def boxed_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("experts", SOURCES, tmp_path_factory.mktemp("boxed_experts"), capability=90)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("router", SOURCES, tmp_path_factory.mktemp("router"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_are_right(products: Path, case: tuple[object, ...]) -> None:
    error, error_of_sum = run_emulated(products, case)
    assert error <= LIMIT and error_of_sum == 0


@pytest.mark.parametrize("case", BOX_CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_of_boxes_are_right(boxed_products: Path, case: tuple[object, ...]) -> None:
    error, error_of_sum = run_emulated(boxed_products, case)
    assert error <= LIMIT and error_of_sum == 0


@pytest.mark.parametrize("case", EXPERT_CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_with_chosen_experts_are_right(experts: Path, case: tuple[object, ...]) -> None:
    (error,) = run_emulated(experts, case)
    assert error <= LIMIT


@pytest.mark.parametrize("case", EXPERT_CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_of_boxes_of_chosen_experts_are_right(boxed_experts: Path, case: tuple[object, ...]) -> None:
    (error,) = run_emulated(boxed_experts, case)
    assert error <= LIMIT


@pytest.mark.parametrize("kind", ["normed", "added"])
@pytest.mark.parametrize("shape", [(1, 2048, 16, 8), (3, 64, 33, 4), (2, 2880, 7, 3), (8, 1000, 5, 2)])
def test_a_routers_product_is_right(router: Path, shape: tuple[int, ...], kind: str) -> None:
    n, k, rows, n_processors = shape
    error, error_of_normed, error_of_sum = run_emulated(router, (n, k, rows, kind, n_processors))
    assert error <= 1e-12 and error_of_normed <= 1e-12 and error_of_sum == 0
