"""Proof by content that bytes reach one device from another, both ways, in several sizes.

A board may claim peer access, report success and deliver nothing. A pair that fails is closed for good: its
traffic goes through host memory. A copy that does not return is left behind on its thread. What was found about a pair
holds until its links say otherwise.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .errors import DeviceError, PyggmlError

PROOF_BYTES = (64, 4096, 2**20 + 13)
TAIL_BYTES = 64
# After so many pairs whose copies do not end the others are not tested: each would cost a deadline, and one that hangs
# may hold the driver's locks, so that good pairs look bad.
MAX_HUNG = 2
NO_END = "did not end"  # as native/cuda/peer.cu says it


class PeerLinks(Protocol):
    """Ranks' devices and the ways between them; ranks are numbers from 0."""

    n_ranks: int

    def enable_peer(self, source: int, target: int) -> str | None:
        """Let `source` reach the memory of `target`; why it cannot, None if it can."""

    def disable_peer(self, source: int, target: int) -> None:
        """Take that back."""

    def copy(self, source: int, target: int, payload: bytes, by_kernel: bool) -> bytes:
        """Send bytes from host to source to target to host; raises PyggmlError."""

    def known_problems(self, first: int, second: int) -> list[str] | None:
        """What an earlier proof found in both directions, "" for nothing; None where there was none."""

    def keep_problems(self, first: int, second: int, problems: list[str]) -> None:
        """Remember what a proof found."""


@dataclass(frozen=True)
class PairProof:
    """One direction between two ranks, and what is wrong with it ("" for nothing).

    `is_lying`: access was granted and bytes did not arrive, in this direction or the other. `is_cached`: found earlier.
    """

    source: int
    target: int
    problem: str = ""
    is_lying: bool = False
    is_cached: bool = False

    @property
    def passed(self) -> bool:
        """Whether all bytes arrived."""
        return not self.problem

    def __str__(self) -> str:
        earlier = " (found earlier; doctor --retest tries again)" if self.is_cached and self.problem else ""
        return f"rank {self.source} to rank {self.target}: {self.problem or 'all bytes arrive'}{earlier}"


def prove_pairs(links: PeerLinks, deadline_s: float, *, keep: bool = True) -> list[PairProof]:
    """Enable and prove every pair; a pair with a problem in one direction is closed in both.

    `deadline_s` bounds each copy. Once copies of MAX_HUNG pairs did not end, now or in an earlier proof, the rest stay
    closed and untested, until those verdicts are gone.
    Without `keep` good pairs are closed again too, for others to enable the few they need: CUDA allows a card 8.
    """
    found: list[PairProof] = []
    n_hung = 0
    for pair in itertools.combinations(range(links.n_ranks), 2):
        if n_hung < MAX_HUNG:
            proofs = _prove_pair(links, *pair, deadline_s, keep)
            n_hung += any(NO_END in proof.problem for proof in proofs)
        else:
            why = f"not tested, since copies of {n_hung} pairs {NO_END}"
            proofs = [PairProof(*way, why, is_lying=True) for way in (pair, pair[::-1])]
        found += proofs
    return found


def _prove_pair(links: PeerLinks, first: int, second: int, deadline_s: float, keep: bool) -> list[PairProof]:
    directions = ((first, second), (second, first))
    problems = [links.enable_peer(*direction) or "" for direction in directions]
    is_reachable = not any(problems)
    known = links.known_problems(first, second) if is_reachable else None
    if known is not None:
        problems = known
    elif is_reachable:
        problems[0] = _prove_direction(links, first, second, deadline_s)
        # The pair is closed after the first bad direction, whatever the other one would be.
        problems[1] = "" if problems[0] else _prove_direction(links, second, first, deadline_s)
        links.keep_problems(first, second, problems)
    if any(problems) or not keep:
        for direction in directions:
            links.disable_peer(*direction)
    if any(problems):
        problems = [problem or "closed, since the other direction failed" for problem in problems]
    return [
        PairProof(*d, problem, bool(problem) and is_reachable, known is not None)
        for d, problem in zip(directions, problems)
    ]


def _prove_direction(links: PeerLinks, source: int, target: int, deadline_s: float) -> str:
    """What is wrong with copies from source to target, "" for nothing; first copies, then a kernel's stores."""
    for by_kernel in (False, True):
        how = "stores" if by_kernel else "copies"
        for size in PROOF_BYTES:
            payload = _payload(size, seed=1 + source + 31 * target + 977 * by_kernel)

            def send(payload: bytes = payload, by_kernel: bool = by_kernel) -> bytes:
                return links.copy(source, target, payload, by_kernel)

            try:
                received = _bounded(send, deadline_s)
            except PyggmlError as error:
                return f"{how} of {size:,} bytes: {error}"
            if received != payload:
                return f"{how} of {size:,} bytes: {_difference(payload, received)}"
    return ""


def _payload(size: int, seed: int) -> bytes:
    # Counted words, mixed so that no part of one payload is that of another.
    words = (np.arange(size // 4 + 1, dtype=np.uint32) + np.uint32(seed * 65537)) * np.uint32(2654435761)
    return words.view(np.uint8)[:size].tobytes()


def _difference(sent: bytes, received: bytes) -> str:
    if len(sent) != len(received):
        return f"{len(received):,} bytes came back"
    wrong = np.flatnonzero(np.frombuffer(sent, np.uint8) != np.frombuffer(received, np.uint8))
    if wrong[0] >= len(sent) - TAIL_BYTES > 0:
        return f"only the last {TAIL_BYTES} bytes are wrong"
    return f"{len(wrong):,} bytes are wrong, the first at {wrong[0]:,}"


def _bounded(work: Callable[[], bytes], deadline_s: float) -> bytes:
    outcome: list[bytes | BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="pyggml-peer-proof", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not outcome:
        raise DeviceError(f"the copy {NO_END} in {deadline_s:.3g} s")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
