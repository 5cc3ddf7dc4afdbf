"""What a loaded model is and where it lies, as plain values for the front."""

from __future__ import annotations

from collections import Counter
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
        "template": llm.chat_format.template.source if _has_chat(llm) else "",
        "metadata": {key: value for key, value in model.file.metadata.items() if _is_plain(key, value)},
        "quantization": _quantization(llm),
        "modified_s": model.path.stat().st_mtime,
        "plan_lines": str(llm.plan).splitlines(),
        "plan": [asdict(placement) for placement in llm.plan],
    }


def _has_chat(llm: LLM) -> bool:
    try:
        return llm.chat_format is not None
    except TemplateError:
        return False


def _is_plain(key: str, value: object) -> bool:
    """Whether metadata are worth telling: numbers and short texts."""
    return isinstance(value, (bool, int, float, str)) and key != "tokenizer.chat_template"


def _quantization(llm: LLM) -> str:
    """The type that most bytes of the weights have."""
    bytes_of: Counter[str] = Counter()
    for tensor in llm.model.file.tensors.values():
        bytes_of[tensor.type.name] += tensor.n_bytes
    return max(bytes_of, key=lambda name: bytes_of[name], default="").upper()


def _capabilities(llm: LLM) -> list[str]:
    """What the model can be asked for."""
    found = ["completion", "embedding", "json_schema"]
    if _has_chat(llm):
        found += ["chat", "tools", *(["reasoning"] if llm.chat_format.layout.closes else [])]
    return found
