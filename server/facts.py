"""What a loaded model is and where it lies, as plain values for the front."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pyggml.engine import LLM, TemplateError


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
        "has_chat_template": _has_chat(llm),
        "n_slots": llm.plan[0].n_slots,
        "probe_id": model.tokenizer.bos_id or 0,
        "capabilities": _capabilities(llm),
        "notes": list(llm.notes),
        "plan_lines": str(llm.plan).splitlines(),
        "plan": [asdict(placement) for placement in llm.plan],
    }


def _has_chat(llm: LLM) -> bool:
    try:
        return llm.chat_format is not None
    except TemplateError:
        return False


def _capabilities(llm: LLM) -> list[str]:
    """What the model can be asked for."""
    found = ["completion", "embedding", "json_schema"]
    if _has_chat(llm):
        found += ["chat", "tools", *(["reasoning"] if llm.chat_format.layout.closes else [])]
    return found
