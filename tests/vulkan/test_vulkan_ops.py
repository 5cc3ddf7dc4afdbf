"""Operations on a Vulkan device: right or refused by name, never the end of the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import op_fuzz
import pytest

import pyggml as gg

Build = Callable[[gg.Graph], gg.Tensor]
H4 = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], "f4") / 2


def inside(g: gg.Graph, name: str, shape: tuple[int, ...] = (4, 33), kind: str = "f32") -> gg.Tensor:
    """All but the first of a tensor's rows, which begin where a storage buffer cannot."""
    return g.input(name, (shape[0] + 1, *shape[1:]), kind)[1:]


def blocks(g: gg.Graph, shape: tuple[int, ...] = (4, 32)) -> gg.Tensor:
    """All but the first of a q8_0 tensor's rows."""
    return g.weight(np.random.default_rng(5).standard_normal((shape[0] + 1, *shape[1:])), type="q8_0")[1:]


def keys(g: gg.Graph, name: str) -> gg.Tensor:
    return g.input(name, (1, 2, 7, 64), "f16")


COMPUTED: dict[str, Build] = {
    "add": lambda g: inside(g, "a") + inside(g, "b"),
    "add to f16": lambda g: inside(g, "a", kind="f16") + inside(g, "b", kind="f16"),
    "silu": lambda g: gg.silu(inside(g, "a")),
    "sqr": lambda g: gg.sqr(inside(g, "a")),
    "scale": lambda g: gg.scale(inside(g, "a"), 2.0),
    "clamp": lambda g: gg.clamp(inside(g, "a"), -1, 1),
    "norm": lambda g: gg.norm(inside(g, "a")),
    "rms_norm": lambda g: gg.rms_norm(inside(g, "a")),
    "sum_rows": lambda g: gg.sum_rows(inside(g, "a")),
    "swiglu": lambda g: gg.swiglu(inside(g, "a"), inside(g, "b")),
    "concat": lambda g: gg.concat(inside(g, "a"), inside(g, "b"), 0),
    "repeat": lambda g: gg.repeat(inside(g, "a"), (8, 33)),
    "cont": lambda g: inside(g, "a").cont(),
    "cast": lambda g: gg.cast(inside(g, "a"), "f16"),
    "copy": lambda g: gg.copy(g.input("a", (4, 33)), g.state("t", (5, 33))[1:]),
    "rope": lambda g: gg.rope(inside(g, "a", (4, 3, 34)), g.input("p", (4,), "i32"), n_dims=34),
    "get_rows": lambda g: gg.get_rows(inside(g, "a"), inside(g, "ids", (3,), "i32")),
    "get_rows of blocks": lambda g: gg.get_rows(blocks(g), g.input("ids", (3,), "i32")),
    "set_rows": lambda g: gg.set_rows(g.state("t", (9, 33)), inside(g, "a"), inside(g, "ids", (4,), "i64")),
    "set_rows of blocks": lambda g: gg.get_rows(
        gg.set_rows(g.state("t", (9, 32), "q8_0")[1:], g.input("a", (4, 32)), g.input("ids", (4,), "i32")),
        g.input("all", (8,), "i32"),
    ),
}
REFUSED: dict[str, Build] = {
    "soft_max": lambda g: gg.soft_max(inside(g, "a")),
    "soft_max's mask": lambda g: gg.soft_max(
        g.input("a", (1, 2, 4, 33)), inside(g, "m", (1, 1, 4, 33), "f16")
    ),
    "argmax": lambda g: gg.argmax(inside(g, "a")),
    "top_k": lambda g: gg.top_k(inside(g, "a"), 3),
    "mul_mat": lambda g: gg.mul_mat(inside(g, "a"), g.input("b", (5, 33))),
    "mul_mat's rows": lambda g: gg.mul_mat(g.input("b", (5, 33)), inside(g, "a")),
    "mul_mat of blocks": lambda g: gg.mul_mat(blocks(g), g.input("b", (5, 32))),
    "mul_mat_id": lambda g: gg.mul_mat_id(
        inside(g, "w", (4, 7, 33)), g.input("a", (4, 1, 33)), g.input("ids", (4, 2), "i32")
    ),
    "mul_mat_id's ids": lambda g: gg.mul_mat_id(
        g.input("w", (4, 8, 33)), g.input("a", (4, 1, 33)), inside(g, "ids", (4, 2), "i32")
    ),
    "rope's positions": lambda g: gg.rope(g.input("a", (4, 3, 34)), inside(g, "p", (4,), "i32"), n_dims=34),
    "flash_attn's mask": lambda g: gg.flash_attn(
        g.input("q", (1, 2, 5, 64)),
        keys(g, "k"),
        keys(g, "v"),
        inside(g, "m", (1, 1, 5, 7), "f16"),
        scale=0.1,
    ),
    "cast of blocks": lambda g: gg.cast(blocks(g), "f32"),
    "copy to blocks": lambda g: gg.copy(g.input("a", (4, 32)), g.state("t", (5, 32), "q8_0")[1:]),
    "cont of i64": lambda g: g.input("a", (4, 33), "i64").T.cont(),
    "cont of f64": lambda g: g.input("a", (4, 33), "f64").cont(),
}


def run(device: str, build: Build) -> np.ndarray:
    """Compute with random numbers, and row numbers that count."""
    dice = np.random.default_rng(1)
    with gg.Backend(device, threads=1) as backend, gg.Graph(backend) as g:
        g.output("y", build(g))
        values = {
            name: np.arange(feed.size).reshape(feed.shape).astype(feed.dtype) % 4
            if feed.dtype.kind == "i"
            else dice.standard_normal(feed.shape).astype(feed.dtype)
            for name, feed in g.feeds.items()
        }
        return g.run(**values)["y"].astype(np.float64)


@pytest.mark.parametrize("name", COMPUTED)
def test_operands_inside_of_other_tensors_give_the_cpus_results(name: str) -> None:
    right = run("cpu", COMPUTED[name])
    assert ((run("vulkan:0", COMPUTED[name]) - right) ** 2).sum() <= 1e-6 * (right**2).sum()


@pytest.mark.parametrize("name", REFUSED)
def test_what_ggml_would_end_the_process_on_is_refused_by_name(name: str) -> None:
    """Or would compute wrongly: it takes these operands when it is asked about them."""
    words = r"no kernel" if "64" in name else r"\.cont\(\)"
    with pytest.raises(gg.ComputeError, match=rf"vulkan:0 cannot compute [A-Z_]+ .*{words}"):
        run("vulkan:0", REFUSED[name])


def test_what_is_refused_inside_of_a_tensor_is_computed_from_a_copy() -> None:
    def build(g: gg.Graph) -> gg.Tensor:
        return gg.soft_max(inside(g, "a").cont())

    np.testing.assert_allclose(run("vulkan:0", build), run("cpu", build), rtol=1e-5)


@pytest.mark.parametrize("n", [1, 33])
def test_states_that_end_within_a_word_begin_with_zeros(n: int) -> None:
    with gg.Backend("vulkan:0") as backend:
        for _ in range(20):
            with gg.Buffer(backend, {"used": ((n,), "f16")}) as buffer:
                buffer["used"].set(np.full((n,), 7, "f2"))
            with gg.Graph(backend) as g:
                assert not g.state("t", (n,), "f16").numpy().any()


def test_rows_that_end_within_a_word_are_zeroed_whole_and_alone() -> None:
    with gg.Backend("vulkan:0") as backend, gg.Buffer(backend, {"t": ((5, 33), "f16")}) as buffer:
        table = buffer["t"]
        table.set(np.ones((5, 33), "f2"))
        table.zero(start_row=1, n_rows=1)
        assert table.numpy().sum(axis=1).tolist() == [33, 0, 33, 33, 33]


@pytest.mark.parametrize("name", op_fuzz.PROPOSALS)
def test_random_operands_give_the_cpus_results_or_are_refused(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    n = 12 if name in ("mul_mat", "matmul", "mul_mat_id", "flash_attn") else 40
    with gg.Backend("vulkan:0") as backend, gg.Backend("cpu", threads=1) as cpu, np.errstate(all="ignore"):
        found = Counter(op_fuzz.outcome(backend, cpu, name, f"{name} 7 {i}") for i in range(n))
    assert found["ran"] and not found["differs"], capfd.readouterr().err[-2000:]
