"""What an engine counts."""

from __future__ import annotations

from dataclasses import dataclass

from .batch import Batch, Phase


@dataclass
class EngineCounts:
    """Steps that ended well, and the tokens in them."""

    n_prefill_steps: int = 0
    n_decode_steps: int = 0
    n_prompt_tokens: int = 0
    n_generated_tokens: int = 0

    def add(self, batch: Batch) -> None:
        """Count a step."""
        self.n_generated_tokens += sum(row.wants_logits for row in batch.rows)
        self.n_prompt_tokens += sum(len(row.ids) for row in batch.rows if row.start < len(row.request.ids))
        if batch.phase is Phase.PREFILL:
            self.n_prefill_steps += 1
        else:
            self.n_decode_steps += 1
