"""`pyggml inspect`: what a model file is, and whether it can be served; reads no weight."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np

from ..balance import MAX_RANKS
from ..cuts import valid_degrees
from ..errors import EngineError
from ..loading import model_facts
from ..model import Model
from .loading import open_model
from .settings import Settings
from .table import render
from .terminal import one_line
from .units import shown_bytes, shown_count

# our name -> the key in the file, for files whose architecture is not known
_NUMBERS = {
    "n_layer": "block_count",
    "n_ctx_train": "context_length",
    "n_embd": "embedding_length",
    "n_vocab": "vocab_size",
    "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "n_ff": "feed_forward_length",
    "n_swa": "attention.sliding_window",
    "n_expert": "expert_count",
    "n_expert_used": "expert_used_count",
}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")
_MAX_SHOWN = 5


def inspect_model(settings: Settings) -> int:
    """Print what the file says."""
    with contextlib.closing(open_model(settings)) as model:
        document = describe(model)
        if settings["tensors"]:
            document["tensors"] = [
                {"name": t.name, "shape": list(t.shape), "type": str(t.type), "n_bytes": t.n_bytes}
                for t in model.file.tensors.values()
            ]
    print(json.dumps(document, ensure_ascii=False, allow_nan=False) if settings["json"] else _page(document))
    return 0


def describe(model: Model) -> dict[str, Any]:
    """Everything that inspect says, for JSON; the tensors themselves left out."""
    tensors = model.file.tensors.values()
    counts = Counter(str(t.type) for t in tensors)
    sizes: Counter[str] = Counter()
    for t in tensors:
        sizes[str(t.type)] += t.n_bytes
    metadata = model.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    missing, lacking = _obstacles(model)
    return {
        "path": str(model.path),
        "files": len(model.file.paths),
        "name": model.name,
        "architecture": model.file.architecture,
        "n_params": sum(int(np.prod(t.shape, dtype=np.int64)) for t in tensors),
        "n_bytes": model.n_bytes,
        "n_tensors": counts.total(),
        "types": {name: {"n_tensors": n, "n_bytes": sizes[name]} for name, n in counts.most_common()},
        **_numbers(model),
        "tokenizer": {
            "model": _plain(metadata.get("tokenizer.ggml.model")),
            "pre": _plain(metadata.get("tokenizer.ggml.pre")),
            "n_tokens": 0 if tokens is None else len(tokens),
        },
        "has_chat_template": any(key.startswith("tokenizer.chat_template") for key in metadata),
        "chat_template_error": _template_error(model),
        "sampling": _sampling(model),
        "is_supported": not missing,
        "modes": None if missing else _modes(model),
        "obstacles": missing,
        "missing_tensors": lacking,
    }


def _plain(value: Any) -> Any:
    """A value that JSON has."""
    if isinstance(value, (np.ndarray, list, tuple)):
        return [_plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return value.item() if isinstance(value, np.generic) else value


def _numbers(model: Model) -> dict[str, Any]:
    try:
        hp = asdict(model.hparams)
        return {name: hp[name] for name in _NUMBERS}
    except EngineError:
        prefix = model.file.architecture
        return {name: _plain(model.metadata.get(f"{prefix}.{key}")) for name, key in _NUMBERS.items()}


def _sampling(model: Model) -> dict[str, Any] | None:
    try:
        params = model.sampling()
    except EngineError:
        return None
    return {name: getattr(params, name) for name in _SAMPLING}


def _template_error(model: Model) -> str | None:
    try:
        template = model.chat_template
    except EngineError:
        return None  # without its tokenizer the model has a greater obstacle
    return None if template is None else template.syntax_error


def _obstacles(model: Model) -> tuple[list[str], list[str]]:
    """Why the model cannot be served, and which tensors it lacks; both empty when it can."""
    try:
        rows = list(model.family.table(model.hparams))
    except EngineError as error:
        return [str(error)], []
    tensors = model.file.tensors
    lacking = [
        row.name
        for row in rows
        if not row.optional
        and row.name not in tensors
        and (row.source is None or row.source.name not in tensors)
    ]
    obstacles = []
    if lacking:
        more = ", …" if len(lacking) > _MAX_SHOWN else ""
        obstacles.append(
            f"{shown_count(len(lacking), 'tensor')} missing: {', '.join(lacking[:_MAX_SHOWN])}{more}"
        )
    else:
        obstacles += _complaint(lambda: model.weights)
    obstacles += _complaint(lambda: model.tokenizer) + _complaint(model.sampling)
    return obstacles, lacking


def _modes(model: Model) -> dict[str, Any]:
    """Over how many devices the model can be cut and split, and why not over others."""
    facts = model_facts(model)
    degrees = valid_degrees(facts.hp, facts.rows, facts.types)
    obstacles = [degree.obstacle for degree in degrees if degree.obstacle]
    split = facts.hp.split_obstacle
    return {
        "tp": [degree.n_ranks for degree in degrees if degree.n_ranks > 1 and not degree.obstacle],
        "tp_obstacle": obstacles[0] if obstacles else "",
        "layer_split": [] if split else list(range(2, min(MAX_RANKS, facts.hp.n_layer) + 1)),
        "layer_split_obstacle": split,
    }


def _modes_rows(modes: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("modes", "one device")]
    for mode, title in (("tp", "--tp"), ("layer_split", "--layer-split")):
        counts, why = modes[mode], modes[f"{mode}_obstacle"]
        rows.append(("", f"{title} {_runs(counts)}" if counts else f"no {title}" + (f": {why}" if why else "")))
    return rows


def _runs(counts: list[int]) -> str:
    """2 to 8, 10: numbers in rising order, those in a row together."""
    runs: list[list[int]] = []
    for n in counts:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _complaint(use: Any) -> list[str]:
    try:
        use()
    except EngineError as error:
        return [str(error)]
    return []


def _page(document: dict[str, Any]) -> str:
    tokenizer = document["tokenizer"]
    kind = f"{tokenizer['model']}" + (f", {tokenizer['pre']}" if tokenizer["pre"] else "")
    files = f" in {shown_count(document['files'], 'file')}" if document["files"] > 1 else ""
    template = "yes" if document["has_chat_template"] else "no (a base model)"
    if document["chat_template_error"]:
        template = f"broken: {document['chat_template_error']}"
    rows = [
        ("name", document["name"]),
        ("architecture", document["architecture"]),
        ("parameters", f"{document['n_params']:,}"),
        (
            "size",
            f"{shown_bytes(document['n_bytes'])} in {shown_count(document['n_tensors'], 'tensor')}{files}",
        ),
        *((name, document[name]) for name in _NUMBERS if document[name] not in (None, 0)),
        ("tokenizer", f"{kind}, {shown_count(tokenizer['n_tokens'], 'token')}"),
        ("chat template", template),
    ]
    if document["sampling"] is not None:
        rows.append(
            ("sampling", ", ".join(f"{name} {value:g}" for name, value in document["sampling"].items()))
        )
    rows.append(("supported", "yes" if document["is_supported"] else "no"))
    rows += _modes_rows(document["modes"]) if document["modes"] else []
    rows += [("", obstacle) for obstacle in document["obstacles"]]
    types = [(name, of["n_tensors"], shown_bytes(of["n_bytes"])) for name, of in document["types"].items()]
    parts = [render([[one_line(str(cell)) for cell in row] for row in rows])]
    parts.append(render(types, header=("type", "tensors", "size"), right=(1, 2)))
    if "tensors" in document:
        listed = [
            (one_line(t["name"]), " x ".join(map(str, t["shape"])), t["type"], shown_bytes(t["n_bytes"]))
            for t in document["tensors"]
        ]
        parts.append(render(listed, header=("tensor", "shape", "type", "size"), right=(3,)))
    return "\n\n".join(parts)
