"""Source files whose code launches kernels of a step: nothing in them waits for a card.

Between two launches of a step another rank's sum may be waiting on its card for what this rank launches next.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "pyggml" / "native" / "cuda"
# They work before the first step or after the last one, or wait with a deadline, for what was launched before (mail),
# for the end of a step that every rank has launched (mark), or for a stream on which nothing was (backend_place).
BETWEEN_STEPS = {"peer.cu", "place.cu", "proof.cu", "push.cu", "nccl.cu", "mail.cu", "mark.cu", "backend_place.cu"}
LAUNCHING = sorted(path.name for path in FOLDER.iterdir() if path.name not in BETWEEN_STEPS)
WAITS = re.compile(
    r"\bcuda(?:\w*Synchronize|Mem(?:cpy|set)(?!\w*Async)\w*|Free\w*|MallocHost|HostAlloc|HostRegister)\("
    r"|\bggml_backend_synchronize\("
)


def waits_in(source: str) -> list[str]:
    return [line.strip() for line in source.splitlines() if WAITS.search(line)]


@pytest.mark.parametrize("name", LAUNCHING)
def test_what_launches_does_not_wait(name: str) -> None:
    assert waits_in((FOLDER / name).read_text()) == []


def test_waits_are_recognised() -> None:
    lines = [
        'why.passed(cudaDeviceSynchronize(), "waiting")',
        "cudaMemset(of.n_read, 0, sizeof(unsigned));",
        "cudaMemsetAsync(of.n_read, 0, sizeof(unsigned), where.stream);",
        "cudaStreamSynchronize(stream);",
        "cudaMemcpyPeer(to, 0, from, 1, size);",
        "cudaMemcpyPeerAsync(to, 0, from, 1, size, stream);",
        "cudaFree(memory);",
    ]
    assert waits_in("\n".join(lines)) == [lines[0], lines[1], lines[3], lines[4], lines[6]]
    assert {"workspace.cu", "fused.cu", "choose.cu", "mask.cu"} <= set(LAUNCHING)
