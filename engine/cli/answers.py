"""Answers on a terminal: text as it comes, then a line of statistics on standard error."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from ..request import FinishReason, Stats
from ..stream import Completion, Stream
from .terminal import printable, say
from .units import shown_count, shown_rate, shown_seconds


def show(stream: Stream) -> Completion:
    """Print the text of a stream as it comes, and the statistics; returns the whole answer.

    Reasoning is shown on a terminal only, dimmed.
    """
    is_terminal = sys.stdout.isatty()
    for delta in stream:
        if delta.reasoning and is_terminal:
            print(dimmed(delta.reasoning), end="", flush=True)
        if delta.text:
            print(printable(delta.text) if is_terminal else delta.text, end="", flush=True)
    print(flush=True)
    (completion,) = stream.completions
    say(stats_line(completion.stats, completion.finish_reason))
    return completion


def dimmed(text: str) -> str:
    """What a model thinks, as a terminal shows it; nothing where there is no terminal."""
    return f"\x1b[2m{printable(text)}\x1b[22m" if text and sys.stdout.isatty() else ""


def stats_line(stats: Stats, reason: FinishReason) -> str:
    """One line for people."""
    cached = f" ({stats.n_cached} cached)" if stats.n_cached else ""
    speed = f", {shown_rate(stats.decode_tok_per_s)} tokens/s" if stats.n_generated > 1 else ""
    return (
        f"[{shown_count(stats.n_prompt, 'prompt token')}{cached}, {stats.n_generated} generated ({reason.value}), "
        f"first after {shown_seconds(stats.ttft_s)}{speed}]"
    )


def stats_document(stats: Stats) -> dict[str, Any]:
    """All statistics for JSON."""
    return asdict(stats) | {
        "prefill_tok_per_s": stats.prefill_tok_per_s,
        "decode_tok_per_s": stats.decode_tok_per_s,
    }
