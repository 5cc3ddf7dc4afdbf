"""Random operands of every operation, built and run; the process must live.

Run as a script by tests: `op_fuzz.py SEED N [OPERATION ...]` builds N graphs of each operation and prints what came of
them. Only the errors that pyggml documents may come out. Each case is written to stderr before it runs, so that the
last line names what ended the process. OP_FUZZ_DEVICE names a device; what one other than the CPU computes is compared
with the CPU's results.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

import pyggml as gg

LENGTHS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64)
PLAIN = ("f32", "f16", "bf16", "i32", "i64", "i8", "i16", "f64")
QUANTISED = (
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q4_k",
    "q6_k",
    "mxfp4",
    "iq4_nl",
    "iq2_xxs",
    "tq1_0",
    "nvfp4",
    "q1_0",
)
WRONG = (gg.ShapeError, gg.ComputeError, gg.AllocationError)
LARGE, NMSE = 1e4, 1e-3


class Case:
    """One graph with the operands of one operation."""

    def __init__(self, backend: gg.Backend, dice: random.Random) -> None:
        self.dice = dice
        self.graph = gg.Graph(backend, max_nodes=256)
        self.values: dict[str, np.ndarray] = {}
        self.words: list[str] = []
        self.has_odd_values = False
        self.is_wild = dice.random() < 0.6

    def kind(self, likely: Sequence[str] = ("f32",)) -> str:
        """A type, mostly one of the likely ones."""
        roll = self.dice.random() * self.is_wild
        return self.dice.choice(likely if roll < 0.8 else PLAIN if roll < 0.92 else QUANTISED)

    def shape(self, ndim: int | None = None) -> list[int]:
        shape = [self.dice.choice(LENGTHS) for _ in range(ndim or self.dice.randint(1, 4))]
        while math.prod(shape) > 20000:
            shape[shape.index(max(shape))] = 2
        return shape

    def near(self, shape: Sequence[int]) -> list[int]:
        """The shape, or one a little different."""
        shape = list(shape)
        roll = self.dice.random() if self.is_wild else 1
        if roll < 0.1:
            shape[self.dice.randrange(len(shape))] = self.dice.choice(LENGTHS)
        elif roll < 0.15 and len(shape) < 4:
            shape.insert(0, self.dice.choice(LENGTHS))
        elif roll < 0.2 and len(shape) > 1:
            del shape[self.dice.randrange(len(shape))]
        return shape

    def smaller(self, shape: Sequence[int]) -> list[int]:
        """A shape that repeats to this one."""
        return self.near([n if self.dice.random() < 0.6 else 1 for n in shape])

    def tensor(self, shape: Sequence[int], kind: str, top: int | None = None, way: str = "") -> gg.Tensor:
        """An operand: an input, a weight, a state or a computed node, sometimes looked at in another order.

        Integers are below `top`, seldom beyond. A `way` is taken except in wild cases.
        """
        type = gg.dtype(kind)
        shape = [*shape[:-1], -(-shape[-1] // type.block_size) * type.block_size]
        ways = ["input", "weight", "state", "computed"] if type.numpy is not None else ["weight", "state"]
        way = way if way and not self.is_wild else self.dice.choice(ways)
        order = list(range(len(shape)))
        if self.dice.random() < (0.3 if self.is_wild else 0.1) and type.block_size == 1:
            self.dice.shuffle(order)
        stored = [0] * len(shape)
        for new, old in enumerate(order):
            stored[old] = shape[new]
        extra = [0] * len(shape)
        if self.dice.random() < 0.2:
            extra[self.dice.randrange(len(shape))] = type.block_size
        skipped = self.dice.choice((0, 1))
        tensor = self._stored([n + e for n, e in zip(stored, extra)], kind, way, top)
        if any(extra):
            tensor = tensor[tuple(slice(skipped * e, n + skipped * e) for n, e in zip(stored, extra))]
        if order != sorted(order):
            tensor = tensor.permute(*order)
        self.words += [
            f"{way}{tuple(shape)}{kind}",
            f"order{order}" * (order != sorted(order)),
            ("cut", "begun later")[skipped] * any(extra),
        ]
        return tensor

    def distinct(self, shape: Sequence[int], kind: str, top: int) -> gg.Tensor:
        """An input of row numbers below `top`, none of which stands twice in a row."""
        rng = np.random.default_rng(self.dice.getrandbits(32))
        name = f"x{len(self.values)}"
        self.values[name] = rng.random((*shape[:-1], top)).argsort(-1)[..., : shape[-1]]
        self.words.append(f"distinct{tuple(shape)}{kind}")
        return self.graph.input(name, shape, kind)

    def _stored(self, shape: list[int], kind: str, way: str, top: int | None) -> gg.Tensor:
        if gg.dtype(kind).is_quantized and kind not in ("q8_0", "q4_0"):
            blocks = self.graph.state("blocks", shape, kind)
            data = np.frombuffer(self.dice.randbytes(blocks.n_bytes), np.uint8)
            blocks.set(data & 0x7F if kind == "nvfp4" else data)  # its scales have no sign
            return blocks
        data = self._data(shape, kind, top)
        if way == "weight":
            return self.graph.weight(data, type=kind)
        if way == "state":
            state = self.graph.state("state", shape, kind)
            if self.dice.random() < 0.8:
                state.set(data)
            else:
                self.has_odd_values = True
            return state
        name = f"x{len(self.values)}"
        self.values[name] = data
        x = self.graph.input(name, shape, kind)
        return x.cont() if way == "computed" else x

    def _data(self, shape: list[int], kind: str, top: int | None) -> np.ndarray:
        rng = np.random.default_rng(self.dice.getrandbits(32))
        if kind.startswith("i") and gg.dtype(kind).numpy is not None:
            low, high = (-3, (top or 4) + 5) if self.dice.random() < 0.1 else (0, top or 4)
            return rng.integers(low, min(high, 100), shape)
        data = rng.standard_normal(shape).astype(np.float32)
        if self.dice.random() < 0.1 and kind == "f32":
            self.has_odd_values = True
            odd = self.dice.choice([np.nan, np.inf, -np.inf, 1e38, 0.0])
            data.reshape(-1)[rng.integers(0, data.size, 1 + data.size // 8)] = odd
        return data


FLOATS = ("f32", "f32", "f32", "f16", "bf16")
WEIGHTS = (*FLOATS, *QUANTISED)


def binary(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape = c.shape()
    a, b = c.tensor(shape, c.kind(FLOATS)), c.tensor(c.smaller(shape), c.kind(FLOATS))
    roll = c.dice.random()
    return op(a, 0.5) if roll < 0.1 else op(b, a) if roll < 0.3 else op(a, b)


def unary(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    return op(c.tensor(c.shape(), c.kind(FLOATS)))


def gated(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape, kind = c.shape(), c.kind(FLOATS)
    return op(c.tensor(shape, kind), c.tensor(c.near(shape), kind))


def with_numbers(*ranges: tuple[float, float]) -> Callable[..., gg.Tensor]:
    def propose(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
        return op(c.tensor(c.shape(), c.kind(FLOATS)), *(c.dice.uniform(*r) for r in ranges))

    return propose


def mul_mat(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    n_in, outer = c.dice.choice((1, 3, 32, 64, 256)), c.shape(2)
    kind = c.kind(WEIGHTS)
    n_in = -(-n_in // gg.dtype(kind).block_size) * gg.dtype(kind).block_size
    w = c.tensor(
        c.near([*c.smaller(outer)[-2:], c.dice.choice(LENGTHS), n_in][-c.dice.randint(1, 4) :]), kind
    )
    x = c.tensor(c.near([*outer, c.dice.choice(LENGTHS), n_in]), c.kind(("f32", "f32", "f32", kind)))
    return op(w, x, f32=c.dice.random() < 0.5)


def mul_mat_id(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    kind, n_expert = c.kind(WEIGHTS), c.dice.choice((1, 2, 4, 7))
    n_in = -(-c.dice.choice((1, 32, 64, 256)) // gg.dtype(kind).block_size) * gg.dtype(kind).block_size
    n_tokens, n_used = c.dice.choice((1, 2, 5, 33)), c.dice.choice((1, 2, 3))
    experts = c.tensor(c.near([n_expert, c.dice.choice(LENGTHS), n_in]), kind)
    x = c.tensor(c.near([n_tokens, c.dice.choice((1, n_used)), n_in]), c.kind())
    if c.dice.random() < 0.3:
        ids = gg.top_k(
            c.tensor([n_tokens, c.dice.choice((n_expert, n_expert + 1))], "f32"), min(n_used, n_expert)
        )
    else:
        ids = c.tensor(c.near([n_tokens, n_used]), c.kind(("i32",)), n_expert)
    return op(experts, x, ids)


def add_id(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    n_tokens, n_used, n_expert, n = (c.dice.choice(lengths) for lengths in ((1, 5, 33), (1, 3), (1, 4), LENGTHS))
    ids = c.tensor(c.near([n_tokens, n_used]), c.kind(("i32",)), n_expert)
    return op(c.tensor(c.near([n_tokens, n_used, n]), c.kind()), c.tensor(c.near([n_expert, n]), c.kind()), ids)


def hadamard(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    n = c.dice.choice((1, 2, 4, 8, 16, 64, 3, 33))
    x = c.tensor(c.near([*c.shape(2), n * c.dice.choice((1, 2, 3))]), c.kind())
    if c.dice.random() < 0.3:
        c.has_odd_values = True  # Not a Hadamard matrix, which some devices do not notice.
        return op(x, c.tensor(c.near([n, n]), c.kind()))
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < n:
        matrix = np.kron(np.array([[1, 1], [1, -1]], np.float32) / math.sqrt(2), matrix)
    return op(x, c.graph.weight(matrix))


def get_rows(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    outer = c.shape(c.dice.randint(0, 2) or 1)[: c.dice.randint(0, 2)]
    n_rows = c.dice.choice(LENGTHS)
    table = c.tensor(c.near([*outer, n_rows, c.dice.choice(LENGTHS)]), c.kind((*WEIGHTS, "i32")))
    if c.dice.random() < 0.2:
        return op(
            table, gg.argmax(c.tensor([c.dice.choice(LENGTHS), n_rows + c.dice.choice((0, 0, 3))], "f32"))
        )
    ids = c.tensor(c.near([*outer, c.dice.choice(LENGTHS)]), c.kind(("i32",)), n_rows)
    return op(table, ids + 1.0 if c.dice.random() < 0.02 else ids)


def set_rows(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    outer = c.shape(2)[: c.dice.randint(0, 2)]
    kind, n_rows, k = c.kind(WEIGHTS), c.dice.choice(LENGTHS), c.dice.choice(LENGTHS)
    row = -(-c.dice.choice(LENGTHS) // gg.dtype(kind).block_size) * gg.dtype(kind).block_size
    table = c.tensor(c.near([*outer, n_rows, row]), kind, way="state")
    rows = c.tensor(c.near([*outer, k, row]), c.kind())
    ids_outer = c.smaller(outer) if outer else []
    kind = c.kind(("i32", "i64"))
    if c.is_wild or k > n_rows:
        c.has_odd_values = True  # Of two rows with one number either may be written last.
        return op(table, rows, c.tensor(c.near([*ids_outer, k]), kind, n_rows))
    return op(table, rows, c.distinct([*ids_outer, k], kind, n_rows))


def soft_max(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape = c.shape()
    mask_shape = [*(n if c.dice.random() < 0.5 else 1 for n in shape[:-2]), *shape[-2:]]
    mask = c.tensor(c.near(mask_shape), c.kind(("f32", "f16"))) if c.dice.random() < 0.7 else None
    max_bias = c.dice.choice((0.0, 0.0, 8.0, -1.0))
    sinks = c.tensor(c.near([shape[-3] if len(shape) > 2 else 1]), c.kind()) if c.dice.random() < 0.2 else None
    return op(c.tensor(shape, c.kind()), mask, scale=c.dice.uniform(-2, 2), max_bias=max_bias, sinks=sinks)


def rope(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    n_tokens, head_dim = c.dice.choice(LENGTHS), c.dice.choice((2, 4, 6, 31, 32, 64))
    x = c.tensor(c.near([n_tokens, c.dice.choice((1, 2, 5)), head_dim]), c.kind(("f32", "f16")))
    positions = c.tensor(c.near([n_tokens]), c.kind(("i32",)), 90)
    factors = (
        c.tensor(c.near([c.dice.choice((head_dim // 2, 32, 1, 3))]), c.kind())
        if c.dice.random() < 0.4
        else None
    )
    n_dims = c.dice.choice(
        (head_dim, head_dim, head_dim // 2, 2, 3, 0, -2, 128) if c.is_wild else (head_dim, 2)
    )
    choices = {
        "neox": (False, True),
        "n_ctx_orig": (0, 4096),
        "ext_factor": (0.0, 1.0),
        "freq_scale": (1.0, 0.25, 0.0),
    }
    options = {name: c.dice.choice(values) for name, values in choices.items()}
    return op(x, positions, n_dims=n_dims, freq_factors=factors, **options)


def flash_attn(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    n_seq, n_head_kv, group = c.dice.choice((1, 1, 2, 3)), c.dice.choice((1, 2)), c.dice.choice((1, 2, 3))
    n, n_kv = c.dice.choice((1, 2, 5, 65)), c.dice.choice((1, 3, 64, 513))
    kinds = (*FLOATS, "q8_0", "q4_0", "q4_k")
    kind = c.kind(kinds)
    block = gg.dtype(kind).block_size
    d, dv = -(-c.dice.choice((1, 16, 32, 64)) // block) * block, c.dice.choice((8, 32))
    if os.environ.get("OP_FUZZ_DEVICE", "").startswith("cuda"):
        d = dv = c.dice.choice((64, 128))  # it has no other sizes of these
    q = c.tensor(c.near([n_seq, n_head_kv * group, n, d]), c.kind())
    k = c.tensor(c.near([n_seq, n_head_kv, n_kv, d]), kind)
    v = c.tensor(c.near([n_seq, n_head_kv, n_kv, dv]), c.kind((kind, *kinds)))
    mask_shape = c.near([c.dice.choice((1, n_seq)), 1, n, n_kv])
    mask = c.tensor(mask_shape, c.kind(("f16",))) if c.dice.random() < 0.7 else None
    max_bias, softcap = c.dice.choice((0.0, 0.0, 8.0)), c.dice.choice((0.0, 0.0, 30.0))
    sinks = c.tensor(c.near([n_head_kv * group]), c.kind()) if c.dice.random() < 0.2 else None
    return op(q, k, v, mask, scale=0.3, max_bias=max_bias, softcap=softcap, sinks=sinks)


def top_k(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape = c.shape()
    return op(c.tensor(shape, c.kind()), c.dice.choice((0, 1, 2, shape[-1], shape[-1] + 1)))


def concat(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape, kind = c.shape(), c.kind((*PLAIN, *QUANTISED))
    axis = c.dice.randint(-len(shape) - 1, len(shape))
    other = list(shape)
    other[axis % len(shape)] = c.dice.choice(LENGTHS)
    return op(c.tensor(shape, kind), c.tensor(c.near(other), c.kind((kind,))), axis)


def repeat(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape = c.shape()
    return op(
        c.tensor(shape, c.kind((*PLAIN, *QUANTISED))),
        c.near([n * c.dice.choice((1, 1, 2, 3)) for n in shape]),
    )


def cast(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    return op(c.tensor(c.shape(), c.kind((*PLAIN, *QUANTISED))), c.kind((*FLOATS, *QUANTISED)))


def cont(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    return op(c.tensor(c.shape(), c.kind((*PLAIN, *QUANTISED))))


def copy(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape = c.shape()
    source = c.tensor(shape, c.kind((*FLOATS, *PLAIN, *QUANTISED)))
    return op(
        source,
        c.tensor(c.near(source.shape), c.kind((*FLOATS, source.dtype.name, "q8_0", "i32")), way="state"),
    )


def reshape(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    shape = c.shape()
    target = c.dice.choice(
        ([-1], [-1, 32], [shape[0], -1], list(reversed(shape)), [2, -1, 2], [-1, -1], [0, 1])
    )
    return op(c.tensor(shape, c.kind((*PLAIN, *QUANTISED))), target)


def permute(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    x = c.tensor(c.shape(), c.kind((*PLAIN, *QUANTISED)))
    axes = list(range(c.dice.choice((x.ndim, 4, 3))))
    c.dice.shuffle(axes)
    moved = op(x, axes)
    return gg.cast(moved, "f32") if c.dice.random() < 0.3 else moved.cont()


def view(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    x = c.tensor(c.shape(), c.kind((*PLAIN, *QUANTISED)))
    shape = c.shape()
    size = x.dtype.type_size
    if c.is_wild:
        strides = [c.dice.choice((0, size, 2 * size, shape[-1] * size, *x.strides, 3)) for _ in shape[1:]]
    else:
        shape = [max(1, n // c.dice.choice((1, 2, 3))) for n in x.shape[:-1]] + [x.dtype.block_size]
        strides = list(x.strides[:-1])
    return op(x, shape, strides, c.dice.choice((0, 0, size, 3, -size) if c.is_wild else (0, size))).cont()


def slicing(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    x = c.tensor(c.shape(), c.kind((*PLAIN, *QUANTISED)))
    choices = (
        slice(None),
        slice(1, None),
        slice(0, 32),
        0,
        -1,
        1,
        ...,
        None,
        slice(None, None, 2),
        1.5,
        slice(2, 1),
    )
    weights = (9, 3, 3, 3, 3, 3, 2, 1, 1, 1, 1)
    index = tuple(c.dice.choices(choices, weights, k=c.dice.randint(1, x.ndim + (c.dice.random() < 0.1))))
    return x[index].cont()


def matmul(c: Case, op: Callable[..., gg.Tensor]) -> gg.Tensor:
    kind, n = c.kind(WEIGHTS), c.dice.choice((32, 256))
    outer = c.shape(2)[: c.dice.randint(0, 2)]
    x = c.tensor([*outer, 3, n], c.kind())
    w = c.tensor(c.near([*outer, 5, n]), kind)
    return x @ w.T if c.dice.random() < 0.6 else w.T @ x if c.dice.random() < 0.3 else x @ w


PROPOSALS: dict[str, Callable[..., gg.Tensor]] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), binary),
    **dict.fromkeys(
        ("neg", "sqr", "sqrt", "log", "exp", "tanh", "relu", "gelu", "silu", "sigmoid", "sum_rows", "argmax"),
        unary,
    ),
    **dict.fromkeys(("swiglu", "geglu", "swiglu_oai"), gated),
    **dict.fromkeys(("norm", "rms_norm"), with_numbers((-0.1, 1.0))),
    "scale": with_numbers((-2.0, 2.0)),
    "clamp": with_numbers((-2.0, 2.0), (-2.0, 2.0)),
    "mul_mat": mul_mat,
    "mul_mat_id": mul_mat_id,
    "add_id": add_id,
    "hadamard": hadamard,
    "get_rows": get_rows,
    "set_rows": set_rows,
    "soft_max": soft_max,
    "rope": rope,
    "flash_attn": flash_attn,
    "top_k": top_k,
    "concat": concat,
    "repeat": repeat,
    "cast": cast,
    "cont": cont,
    "copy": copy,
    "reshape": reshape,
    "permute": permute,
    "view": view,
    "slicing": slicing,
    "matmul": matmul,
}


def attempt(backend: gg.Backend, name: str, key: str) -> tuple[np.ndarray | str, Case]:
    """Build and run one graph; returns its result, or the name of the error that refused it."""
    case = Case(backend, random.Random(key))
    with case.graph as g:
        try:
            y = PROPOSALS[name](case, getattr(gg, name, None))
            print(backend.device.name, key, *case.words, file=sys.stderr, flush=True)
            if y.dtype.block_size == 1:
                y = gg.concat(y, y, 0)
            g.output("y", y)
            return g.run(**{n: v.astype(g.feeds[n].dtype) for n, v in case.values.items()})["y"], case
        except WRONG as error:
            return type(error).__name__, case


def is_near(name: str, ours: np.ndarray, right: np.ndarray) -> bool:
    """Whether two results are equal but for rounding; anything is near to numbers without bounds."""
    a, b = ours.astype(np.float64), right.astype(np.float64)
    if not np.isfinite(b).all() or np.abs(b).max(initial=0) > LARGE:
        return True
    if name == "top_k":  # in any order
        a, b = np.sort(a), np.sort(b)
    return bool(((a - b) ** 2).sum() <= NMSE * (b**2).sum() + 1e-9 * b.size)


def outcome(backend: gg.Backend, beside: gg.Backend | None, name: str, key: str) -> str:
    """What came of one graph."""
    result, case = attempt(backend, name, key)
    if isinstance(result, str):
        return result
    if beside is None or case.has_odd_values:
        return "ran"
    right, _ = attempt(beside, name, key)
    if isinstance(right, str) or is_near(name, result, right):
        return "ran"
    print("  differs from the CPU's result", file=sys.stderr, flush=True)
    return "differs"


def main(seed: str, n: int, names: Sequence[str]) -> None:
    device = os.environ.get("OP_FUZZ_DEVICE", "cpu")
    with (
        gg.Backend(device, threads=1) as backend,
        gg.Backend("cpu", threads=1) as cpu,
        np.errstate(all="ignore"),
    ):
        beside = None if device == "cpu" else cpu
        for name in names or PROPOSALS:
            outcomes = Counter(outcome(backend, beside, name, f"{name} {seed} {i}") for i in range(n))
            print(name, *(f"{word}={count}" for word, count in sorted(outcomes.items())), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
