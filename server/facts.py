"""What a loaded model is and where it lies, as plain values for the front."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyggml.engine import LLM


def facts_of(llm: LLM) -> dict[str, Any]:
    """All facts; also builds what the first request would have to wait for."""
    model, hparams = llm.model, llm.model.hparams
    llm.tokenize("warm")
    return {
        "path": str(model.path),
        "arch": model.arch,
        "name": model.name,
        "n_ctx": llm.n_ctx,
        "n_ctx_train": hparams.n_ctx_train,
        "n_vocab": hparams.n_vocab,
        "n_embd": hparams.n_embd,
        "n_layer": hparams.n_layer,
        "n_params": sum(t.ne[0] * t.n_rows for t in model.file.tensors.values()),
        "file_bytes": model.n_bytes,
        "has_chat_template": llm.model.chat_template is not None,
        "n_slots": llm.plan[0].n_slots,
        "probe_id": model.tokenizer.bos_id or 0,
        "capabilities": ["completion", *(["chat"] if model.chat_template is not None else [])],
        "notes": list(llm.notes),
        "plan_lines": str(llm.plan).splitlines(),
        "plan": [asdict(placement) for placement in llm.plan],
    }
