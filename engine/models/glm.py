"""GLM 4 (`glm4`): norms before and after each part, gate and up in one tensor; GLM 4.5 (`glm4moe`): experts.

Their feed-forwards pass float16's range where devices accumulate in it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..blocks.layers import AROUND, Norms, dense_or_experts, sequential
from ..hparams import HParams, read_router
from ..keys import Keys
from . import gemma, llama
from .family import Family, numbers
from .mixture import dense_lead

_NORM_BEFORE_FFN = "post_attention_norm"
_feed = partial(dense_or_experts, f32=True)


def _experts(hp: HParams, keys: Keys) -> HParams:
    n_shared = keys.integer("expert_shared_count", 0)
    router = read_router(keys, hp.n_expert, kind="sigmoid")
    return replace(hp, router=router, n_ff_shexp=n_shared * hp.n_ff_exp)


FAMILIES = {
    "glm4": Family("glm4", numbers(neox=False), gemma.table, partial(sequential, norms=AROUND, feed=_feed)),
    "glm4moe": Family(
        "glm4moe",
        numbers(dense_lead, _experts, neox=True),
        partial(llama.table, ffn_norm=_NORM_BEFORE_FFN),
        partial(sequential, norms=Norms(feed_forward=_NORM_BEFORE_FFN), feed=_feed),
    ),
}
