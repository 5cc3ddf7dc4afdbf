"""Prometheus metrics: our names in vLLM's shapes, and llama-server's names beside them, which dashboards know.

One registry a server, so that several in one process do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from .messages import Counts

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.3, 2.5, 5)

disable_created_metrics()


class Metrics:
    """Counters and histograms that requests feed; `add_source` gives values that are read when asked for."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._label = {"model_name": model}
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token", SECONDS
        )
        self.inter_token = self._histogram("inter_token_latency_seconds", "Between two pieces", TOKEN_SECONDS)
        self.end_to_end = self._histogram("e2e_request_latency_seconds", "From arrival to end", SECONDS)
        self.queue_time = self._histogram("request_queue_time_seconds", "From arrival to the first step", SECONDS)
        self._success = Counter(
            "pyggml_request_success", "Finished answers by reason", ["model_name", "finished_reason"],
            registry=self._registry,
        )  # fmt: skip
        self._responses = Counter(
            "pyggml_http_responses", "Responses by path and status", ["path", "status"], registry=self._registry
        )
        self._totals = {
            name: Counter(f"pyggml_{name}", text, ["model_name"], registry=self._registry).labels(model)
            for name, text in (
                ("prompt_tokens", "Prompt tokens, those from the prefix cache included"),
                ("prompt_tokens_cached", "Prompt tokens that came from the prefix cache"),
                ("generation_tokens", "Tokens generated"),
                ("prompt_seconds", "Time spent on prompts"),
                ("generation_seconds", "Time spent on answers"),
            )
        }
        self._llamacpp = {
            name: Counter(f"llamacpp:{name}", text, registry=self._registry)
            for name, text in (
                ("prompt_tokens", "Prompt tokens evaluated"),
                ("tokens_predicted", "Tokens generated"),
                ("prompt_seconds", "Time spent on prompts"),
                ("tokens_predicted_seconds", "Time spent on answers"),
            )
        }
        self._rates = {
            name: Gauge(f"llamacpp:{name}", text, registry=self._registry)
            for name, text in (
                ("prompt_tokens_seconds", "Prompt tokens a second of the last answer"),
                ("predicted_tokens_seconds", "Tokens a second of the last answer"),
            )
        }

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        histogram = Histogram(
            f"pyggml_{name}", text, ["model_name"], buckets=tuple(buckets), registry=self._registry
        )
        return histogram.labels(self._label["model_name"])

    def finished(self, reason: str, counts: Counts) -> None:
        """An answer has ended."""
        self._success.labels(finished_reason=reason, **self._label).inc()
        n_new = max(0, counts.n_prompt - counts.n_cached)
        for name, value in (
            ("prompt_tokens", counts.n_prompt),
            ("prompt_tokens_cached", counts.n_cached),
            ("generation_tokens", counts.n_generated),
            ("prompt_seconds", counts.prefill_s),
            ("generation_seconds", counts.decode_s),
        ):
            self._totals[name].inc(value)
        self._llamacpp["prompt_tokens"].inc(n_new)
        self._llamacpp["tokens_predicted"].inc(counts.n_generated)
        self._llamacpp["prompt_seconds"].inc(counts.prefill_s)
        self._llamacpp["tokens_predicted_seconds"].inc(counts.decode_s)
        if counts.prefill_s > 0:
            self._rates["prompt_tokens_seconds"].set(n_new / counts.prefill_s)
        if counts.decode_s > 0:
            self._rates["predicted_tokens_seconds"].set((counts.n_generated - 1) / counts.decode_s)
        self.queue_time.observe(max(0.0, counts.ttft_s - counts.prefill_s))

    def cancelled(self) -> None:
        """A client has left before its answer's end."""
        self._success.labels(finished_reason="cancelled", **self._label).inc()

    def responded(self, path: str, status: int) -> None:
        """A response was sent."""
        self._responses.labels(path, str(status)).inc()

    def add_source(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Metrics that are read when somebody asks."""
        self._registry.register(_Source(read))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the form that the client accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Source:
    """A collector of values that are read when asked for."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield from self._read()

    def describe(self) -> list[Metric]:
        return []


def gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...] = ()) -> Metric:
    """A gauge with a value for each combination of labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def counter(name: str, text: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...] = ()) -> Any:
    """A counter, as gauge()."""
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
