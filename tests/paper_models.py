"""Models on paper for the planner: numbers, table rows and element types, without a file."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyggml.engine.balance import DeviceFacts
from pyggml.engine.cuts import TensorPlan, tp_cuts
from pyggml.engine.demand import CacheFacts, ModelFacts
from pyggml.engine.hparams import HParams, Rope
from pyggml.engine.slices import WHOLE
from pyggml.engine.weight_table import Cut, Weight, embedding_rows, layer_rows

GIB = 2**30


class Kind(NamedTuple):
    """An element type as the planner sees it."""

    block_size: int
    type_size: int


F32, F16, Q8_0, Q4_0 = Kind(1, 4), Kind(1, 2), Kind(32, 34), Kind(32, 18)
Q4_K, Q6_K = Kind(256, 144), Kind(256, 210)


def numbers(**changed: Any) -> HParams:
    """A small model's numbers with some of them changed."""
    head_dim = changed.get("head_dim", 64)
    rope = Rope(n_dims=head_dim, freq_base=10000.0)
    given: dict[str, Any] = {
        "arch": "llama", "n_layer": 2, "n_ctx_train": 4096, "n_embd": 256, "n_vocab": 320, "n_head": 4, "n_head_kv": 2,
        "head_dim": head_dim, "head_dim_v": head_dim, "n_ff": 512, "norm_eps": 1e-5, "rope": rope, "rope_swa": rope,
        "attn_scale": head_dim**-0.5,
    }  # fmt: skip
    given |= changed
    given.setdefault("n_ff_exp", given["n_ff"])
    return HParams(is_swa=(False,) * given["n_layer"], **given)


def table(hp: HParams) -> list[Weight]:
    """The rows of a Llama of these numbers."""
    return [*embedding_rows(hp), *(row for i in range(hp.n_layer) for row in layer_rows(hp, i))]


def kinds(
    rows: list[Weight], matrices: Kind = F32, *, biases: bool = False, **by_part: Kind
) -> dict[str, Kind]:
    """A type for each weight of the file: `matrices` for all, others by part of the name (`ffn_down=Q4_K`)."""
    found = {}
    for row in rows:
        if row.optional and not (biases and row.name.endswith(".bias")):
            continue
        is_matrix = len(row.shape) > 1 and not row.name.endswith(".bias")
        found[row.name] = matrices if is_matrix else F32
        for part, kind in by_part.items():
            if part in row.name and is_matrix:
                found[row.name] = kind
    return found


def llama_8b() -> HParams:
    """Llama 3's 8B."""
    return numbers(
        n_layer=32,
        n_ctx_train=131072,
        n_embd=4096,
        n_vocab=128256,
        n_head=32,
        n_head_kv=8,
        head_dim=128,
        n_ff=14336,
    )


def cut_rows(rows: list[Weight], *cuts: Cut) -> list[Weight]:
    """The rows that are cut in one of these ways."""
    return [row for row in rows if row.cut in cuts]


def even(n: int) -> tuple[float, ...]:
    """Shares of n like ranks."""
    return (1.0,) * n


def plan_of(
    hp: HParams,
    shares: tuple[float, ...],
    matrices: Kind = F32,
    expert_split: str = "inside",
    **by_part: Kind,
) -> TensorPlan:
    """A Llama of these numbers and types, cut."""
    rows = table(hp)
    return tp_cuts(hp, rows, kinds(rows, matrices, **by_part), shares, expert_split=expert_split)


CACHE = CacheFacts(n_slots=4)
CPU = DeviceFacts("cpu", "cpu", "a processor", 500 * GIB)


def facts(hp: HParams, kind: Kind = Q8_0) -> ModelFacts:
    """The model with all its matrices of one type."""
    rows = table(hp)
    return ModelFacts(hp, rows, kinds(rows, kind))


def gpus(n: int, free_gib: float = 80) -> list[DeviceFacts]:
    """Like cards, cuda:0 and on."""
    return [DeviceFacts(f"cuda:{i}", "gpu", "NVIDIA H200", int(free_gib * GIB)) for i in range(n)]


def total_bytes(model: ModelFacts) -> int:
    """Bytes of all weights of the file."""
    return sum(
        WHOLE.n_bytes(row.shape, model.types[row.name]) for row in model.rows if row.name in model.types
    )
