"""Metrics that are read when somebody asks: the queue, the slots, the cache, each rank's memory, each replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .engine_link import State
from .metrics import Metric, counter, gauge
from .status_handler import engine_status

if TYPE_CHECKING:
    from .front import Front
    from .replicas import Replica

NONE: tuple[str, ...] = ()
RANK_BYTES = ("weights_bytes", "mapped_bytes", "cache_bytes", "compute_bytes")


def engine_metrics(front: Front) -> Iterator[Metric]:
    """The values of this moment; `front.engine_statuses` were fetched just before."""
    model, link, facts = (front.names[0],), front.link, front.link.facts
    running = min(front.traffic.n_open, link.n_slots)
    status: dict[str, Any] = engine_status(front.engine_statuses) or {}
    running = status.get("n_running", running)
    waiting = status.get("n_queued", max(0, front.traffic.n_open - running))
    yield gauge("pyggml_up", "Whether requests are answered", {NONE: float(link.state is State.READY)})
    yield gauge("pyggml_num_requests_running", "Answers being made", {model: running}, ("model_name",))
    yield gauge("pyggml_num_requests_waiting", "Answers that wait", {model: waiting}, ("model_name",))
    yield gauge("llamacpp:requests_processing", "Answers being made", {NONE: running})
    yield gauge("llamacpp:requests_deferred", "Answers that wait", {NONE: waiting})
    yield counter("pyggml_engine_restarts", "Times that the engine was started again", {NONE: link.n_restarts})
    yield gauge("pyggml_context_tokens", "Limit of one request", {model: facts.get("n_ctx", 0)}, ("model_name",))
    yield gauge("pyggml_slots", "Answers that are made together", {model: link.n_slots}, ("model_name",))
    memory: dict[tuple[str, ...], float] = {
        (str(of.get("replica", 0)), str(of.get("rank", i)), of["device"], name.removesuffix("_bytes")): float(of[name])
        for i, of in enumerate(facts.get("plan", ()))
        for name in RANK_BYTES
    }
    yield gauge("pyggml_rank_memory_bytes", "Bytes on each rank by kind", memory, ("replica", "rank", "device", "kind"))
    transports: dict[tuple[str, ...], float] = {(name,): 1.0 for name in status.get("transports", ())}
    if transports:
        yield gauge("pyggml_transport", "How ranks exchange sums", transports, ("transport",))
    if status:
        yield from _counted(status)
    yield from _of_replicas(front)


def _of_replicas(front: Front) -> Iterator[Metric]:
    """A row for each replica."""
    replicas, statuses = front.link.all, front.engine_statuses

    def rows(value: Callable[[Replica], float]) -> dict[tuple[str, ...], float]:
        return {(str(replica.number),): float(value(replica)) for replica in replicas}

    def told(name: str) -> dict[tuple[str, ...], float]:
        return {(str(number),): float(status[name]) for number, status in statuses.items()}

    label = ("replica",)
    is_up = rows(lambda replica: replica.link.state is State.READY)
    yield gauge("pyggml_replica_up", "Whether the replica answers", is_up, label)
    yield gauge("pyggml_replica_requests_open", "Requests given to it", rows(lambda r: r.link.n_open), label)
    yield gauge("pyggml_replica_num_requests_running", "Answers being made", told("n_running"), label)
    yield gauge("pyggml_replica_num_requests_waiting", "Answers that wait", told("n_queued"), label)
    yield counter("pyggml_replica_restarts", "Times it was started again", rows(lambda r: r.link.n_restarts), label)
    yield counter("pyggml_replica_routed", "Requests that it was given", rows(lambda r: r.n_routed), label)
    by_prefix = rows(lambda r: r.n_by_prefix)
    yield counter("pyggml_replica_routed_by_prefix", "Those whose beginning it was known to hold", by_prefix, label)
    yield counter("pyggml_replica_prompt_tokens", "Prompt tokens since its start", told("n_prompt_tokens"), label)
    yield counter("pyggml_replica_generation_tokens", "Tokens since its start", told("n_generated_tokens"), label)


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
