"""Metrics that are read when somebody asks: the queue, the slots, the cache, and each rank's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .engine_link import State
from .metrics import Metric, counter, gauge

if TYPE_CHECKING:
    from .front import Front

NONE: tuple[str, ...] = ()
RANK_BYTES = ("weights_bytes", "mapped_bytes", "cache_bytes", "compute_bytes")


def engine_metrics(front: Front) -> Iterator[Metric]:
    """The values of this moment; `front.engine_status` was fetched just before."""
    model, link, facts = (front.names[0],), front.link, front.link.facts
    running = min(front.traffic.n_open, facts.get("n_slots", 0))
    status: dict[str, Any] = front.engine_status or {}
    running = status.get("n_running", running)
    waiting = status.get("n_queued", max(0, front.traffic.n_open - running))
    yield gauge("pyggml_up", "Whether requests are answered", {NONE: float(link.state is State.READY)})
    yield gauge("pyggml_num_requests_running", "Answers being made", {model: running}, ("model_name",))
    yield gauge("pyggml_num_requests_waiting", "Answers that wait", {model: waiting}, ("model_name",))
    yield gauge("llamacpp:requests_processing", "Answers being made", {NONE: running})
    yield gauge("llamacpp:requests_deferred", "Answers that wait", {NONE: waiting})
    yield counter("pyggml_engine_restarts", "Times that the engine was started again", {NONE: link.n_restarts})
    yield gauge("pyggml_context_tokens", "Limit of one request", {model: facts.get("n_ctx", 0)}, ("model_name",))
    yield gauge("pyggml_slots", "Answers that are made together", {model: facts.get("n_slots", 0)}, ("model_name",))
    memory: dict[tuple[str, ...], float] = {
        (str(rank), placed["device"], name.removesuffix("_bytes")): float(placed[name])
        for rank, placed in enumerate(facts.get("plan", ()))
        for name in RANK_BYTES
    }
    yield gauge("pyggml_rank_memory_bytes", "Bytes on each rank by kind", memory, ("rank", "device", "kind"))
    transports: dict[tuple[str, ...], float] = {(name,): 1.0 for name in status.get("transports", ())}
    if transports:
        yield gauge("pyggml_transport", "How ranks exchange sums", transports, ("transport",))
    if status:
        yield from _counted(status)


def _counted(status: dict[str, Any]) -> Iterator[Metric]:
    """What the engine counts."""
    prefix = status["prefix"]
    yield counter("pyggml_prefix_cache_queries", "Prompt tokens looked up", {NONE: prefix["n_prompt_tokens"]})
    yield counter("pyggml_prefix_cache_hits", "Prompt tokens that were there", {NONE: prefix["n_reused_tokens"]})
    held = sum(slot["n_held"] for slot in status["slots"])
    room = max(1, len(status["slots"]) * status["n_ctx"])
    yield gauge("pyggml_kv_cache_usage_perc", "Part of the cache that holds tokens", {NONE: held / room})
    yield counter("pyggml_decode_steps", "Decode steps", {NONE: status["n_decode_steps"]})
    yield counter("pyggml_prefill_steps", "Prefill steps", {NONE: status["n_prefill_steps"]})
    yield counter("llamacpp:n_decode", "Steps of the engine", {NONE: status["n_steps"]})
    yield counter("pyggml_native_seconds", "Time spent computing", {NONE: status["native_s"]})
    yield counter("pyggml_plan_seconds", "Time spent planning graphs", {NONE: status["plan_s"]})
    yield counter("pyggml_reduces", "Sums over ranks", {NONE: status["n_reduces"]})
    if status["reduce_s"] is not None:
        yield counter("pyggml_reduce_seconds", "Time spent on sums over ranks", {NONE: status["reduce_s"]})
