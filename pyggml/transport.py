"""The ways to sum over ranks, and the choice among them: by test and by timing, never by a card's claims.

`push` stores into the peers' memory, `push-shm` into host memory that all cards reach, `nccl` and `nccl-shm` (peer
access off) use NCCL, `host` sums on the host and works everywhere. What the ranks run on is behind `Links`; nothing
here knows CUDA.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from .errors import DeviceError, PyggmlError
from .peers import PairProof, PeerLinks, prove_pairs
from .switches import OFF_WORDS, is_on

LOG = logging.getLogger("pyggml.transport")
NAMES = ("push", "nccl", "push-shm", "nccl-shm", "host")
# What each of these is for is not needed where the other one works.
SECOND_CHOICES = {"push-shm": "push", "nccl-shm": "nccl"}
# Sums of one token of a small and of a large model or of a batch, and of a prefill's micro-batch.
TIMED_ELEMENTS = (4096, 65536, 524288, 2097152)
MAX_ELEMENTS = 2**63 - 1


class Links(PeerLinks, Protocol):
    """What the choice asks of a group's devices."""

    def obstacle(self, name: str) -> str | None:
        """Why this transport cannot be here, whatever a test would say; None if it may."""

    def copy_obstacle(self) -> str | None:
        """Why ranks cannot copy to each other's devices, whatever a test would say; None if they may."""

    trial_times: dict[str, str]  # of each trial: now, earlier or never

    def try_out(self, name: str) -> str | None:
        """Run a trial that may hang, where it can be killed; what went wrong, None if nothing did."""

    def open(self, name: str) -> None:
        """Make the transport and prove its sums; raises PyggmlError."""

    def seconds(self, name: str, n_elements: int) -> float:
        """Seconds one sum takes over an open transport; raises PyggmlError."""


@dataclass(frozen=True)
class Span:
    """The sums that one transport takes, by their number of elements, both ends included."""

    name: str
    min_elements: int
    max_elements: int


@dataclass
class TransportRow:
    """One transport: whether it passed, else why not, and its seconds a sum by number of elements."""

    name: str
    passed: bool = False
    reason: str = ""
    seconds: dict[int, float] = field(default_factory=dict)


@dataclass
class TransportReport:
    """What was found and chosen; groups keep it."""

    rows: list[TransportRow]
    pairs: list[PairProof]
    spans: list[Span]
    forced: str | None = None
    trials: dict[str, str] = field(default_factory=dict)  # when NCCL's ways were tried: now, earlier or never

    def row(self, name: str) -> TransportRow:
        """The row of one transport."""
        return next(row for row in self.rows if row.name == name)

    def name_for(self, n_elements: int) -> str:
        """The transport that takes a sum of this many elements."""
        return next(s.name for s in self.spans if s.min_elements <= n_elements <= s.max_elements)

    def can_copy(self, source: int, target: int) -> bool:
        """Whether copies from one rank's device to another's were proven to deliver."""
        return any((p.source, p.target) == (source, target) and p.passed for p in self.pairs)

    def as_dict(self) -> dict[str, object]:
        """Everything, ready for JSON."""
        return {
            "forced": self.forced,
            "transports": [asdict(row) for row in self.rows],
            "pairs": [asdict(pair) for pair in self.pairs],
            "chosen": [asdict(span) for span in self.spans],
        }

    def table(self) -> str:
        """A table of microseconds a sum, `*` marking what is used, then the reasons and the pairs that failed."""
        sizes = sorted({n for row in self.rows for n in row.seconds})
        lines = ["".join([f"{'transport':<10}", *(f"{n:>12,}" for n in sizes)]) + "  elements"]
        for row in self.rows:
            cells = [
                _cell(row.seconds[n], self.name_for(n) == row.name) if n in row.seconds else "-"
                for n in sizes
            ]
            state = "" if row.passed else row.reason
            lines.append(
                "".join([f"{row.name:<10}", *(f"{cell:>12}" for cell in cells)]) + f"  {state}".rstrip()
            )
        lines += [str(pair) for pair in self.pairs if not pair.passed]
        return "\n".join(lines)


def _cell(seconds: float, is_used: bool) -> str:
    return f"{seconds * 1e6:.1f} us{'*' if is_used else ' '}"


def forced_name(option: str | None = None) -> str | None:
    """The transport that the option or PYGGML_TRANSPORT forces, None for a free choice.

    Raises DeviceError for a name that does not exist.
    """
    name = (option or os.environ.get("PYGGML_TRANSPORT", "")).strip().lower()
    if name in ("", "auto"):
        return None
    if name not in NAMES:
        raise DeviceError(f"transport {name!r} does not exist; there are {', '.join(NAMES)}")
    return name


def choose(
    links: Links,
    *,
    forced: str | None = None,
    peers: bool = True,
    proof_s: float = 10.0,
    time_all: bool = False,
) -> TransportReport:
    """Test what may work between the ranks, time what passed, and choose by size.

    Without `peers` no rank reaches another's memory; `proof_s` bounds each copy of the pair tests. Pairs are tested for
    messages too, but with a forced transport only if that needs them. Host memory alone is timed only on request.
    Raises DeviceError when a forced transport cannot be used, naming those that can.
    """
    trial = _Trial(links, peers, proof_s)
    if not forced:
        trial.prove()
    for name in (forced,) if forced else NAMES:
        # NCCL takes its settings once a process, and pinned memory is dear: second ways are for where the first fail.
        first = SECOND_CHOICES.get(name)
        if first and not forced and trial.rows[first].passed:
            trial.rows[name].reason = f"not needed: {first} works with peer access"
        elif name == "host" and not time_all and not any(row.passed for row in trial.rows.values()):
            trial.rows[name].passed = True
        else:
            trial.run(name)
    if forced:
        if not trial.rows[forced].passed:
            _refuse(trial, forced)
        for name in set(NAMES) - {forced}:
            trial.rows[name].reason = f"{forced} is forced"
    elif not (trial.rows["push"].passed or trial.rows["nccl"].passed):
        trial.open_neighbours()
    rows = [trial.rows[name] for name in NAMES]
    spans = spans_of({r.name: r.seconds for r in rows if r.passed})
    return TransportReport(rows, trial.pairs, spans, forced, links.trial_times)


class _Trial:
    """One pass over the transports of a group; pairs are proven once, when first needed."""

    def __init__(self, links: Links, peers: bool, proof_s: float) -> None:
        self.links = links
        self.peers = peers
        self.proof_s = proof_s
        self.pairs: list[PairProof] = []
        self.rows = {name: TransportRow(name) for name in NAMES}

    def test(self, name: str) -> str:
        """Why the transport cannot be used, as far as that can be told without opening it; else ""."""
        problem = self.links.obstacle(name)
        if problem is None and name in ("push", "nccl"):
            problem = self._peer_problem(name)
        if problem is None and name.startswith("nccl"):
            problem = self.links.try_out(name)
        return problem or ""

    def run(self, name: str) -> None:
        """Test, open and time one transport."""
        row = self.rows[name]
        row.reason = self.test(name)
        if row.reason:
            LOG.info("transport %s is not used: %s", name, row.reason)
            return
        try:
            self.links.open(name)
            for n_elements in TIMED_ELEMENTS:
                row.seconds[n_elements] = self.links.seconds(name, n_elements)
        except PyggmlError as error:
            row.seconds.clear()
            row.reason = str(error)
            LOG.warning("transport %s failed and is not used: %s", name, row.reason)
            return
        row.passed = True

    def _peer_problem(self, name: str) -> str | None:
        if not self.peers:
            return "peer access is switched off"
        self.prove()
        # NCCL finds its own way round pairs without access, but trusts those that have it.
        bad = (pair for pair in self.pairs if pair.is_lying or (name == "push" and not pair.passed))
        return next((str(pair) for pair in bad), None)

    def prove(self) -> None:
        """Prove the pairs; without effect where that was done, or peers are off or cannot be."""
        if self.pairs or not self.peers or self.links.copy_obstacle():
            return
        keep = self.links.obstacle("push") is None
        self.pairs = prove_pairs(self.links, self.proof_s, keep=keep)
        for pair in self.pairs:
            if not pair.passed:
                LOG.warning("%s; what goes between them takes the way through host memory", pair)

    def open_neighbours(self) -> None:
        """Let messages of layers to the next rank take its card's memory; two of the 8 peers that CUDA allows.

        For when no transport has opened peers. Where that fails, and between all others, the driver itself takes
        copies through host memory.
        """
        passed = {(pair.source, pair.target) for pair in self.pairs if pair.passed}
        for rank in range(self.links.n_ranks - 1):
            for way in ((rank, rank + 1), (rank + 1, rank)):
                if way in passed:
                    self.links.enable_peer(*way)


def _refuse(trial: _Trial, forced: str) -> None:
    others = [name for name in NAMES if name != forced and not trial.test(name)]
    reason = trial.rows[forced].reason
    raise DeviceError(f"transport {forced} cannot be used here: {reason}; would work: {', '.join(others)}")


def spans_of(times: Mapping[str, Mapping[int, float]]) -> list[Span]:
    """The fastest transport by size, as one unbroken range of sizes each; borders lie midway in powers.

    Units: seconds by number of elements, the same numbers for all.
    """
    order = sorted(times, key=NAMES.index)
    if len(order) == 1:
        return [Span(order[0], 0, MAX_ELEMENTS)]
    sizes = sorted(times[order[0]])
    fastest = {n: min(seconds[n] for seconds in times.values()) for n in sizes}

    def slowdown(names: Sequence[str]) -> float:
        return sum(times[name][n] / fastest[n] for name, n in zip(names, sizes))

    unbroken = (names for names in itertools.product(order, repeat=len(sizes)) if _is_unbroken(names))
    best = min(unbroken, key=slowdown)
    spans: list[Span] = []
    start = 0
    for i, name in enumerate(best):
        if i + 1 == len(best):
            spans.append(Span(name, start, MAX_ELEMENTS))
        elif best[i + 1] != name:
            border = int((sizes[i] * sizes[i + 1]) ** 0.5)
            spans.append(Span(name, start, border))
            start = border + 1
    return spans


def _is_unbroken(names: Iterable[str]) -> bool:
    runs = [name for name, _ in itertools.groupby(names)]
    return len(runs) == len(set(runs))


def clear_peer_environment(peers: bool) -> bool:
    """Make ggml-cuda's own peer switch mean what the user said; returns whether peers may be used.

    ggml takes GGML_CUDA_P2P as "on" whatever its value and aborts where a pair fails, so that an "off" must unset it,
    before ggml's CUDA module is loaded. It is never set here: pairs are enabled one by one, after their test.
    Raises DeviceError where PYGGML_P2P is no word for on or off.
    """
    is_wanted = is_on("PYGGML_P2P")
    if not peers or not is_wanted or os.environ.get("GGML_CUDA_P2P", "on").strip().lower() in OFF_WORDS:
        os.environ.pop("GGML_CUDA_P2P", None)
        return False
    return True


def are_ranks_serial() -> bool:
    """Whether ranks compute one at a time, for diagnosis: PYGGML_PARALLEL_RANKS is off.

    Raises DeviceError where it is no word for on or off.
    """
    return not is_on("PYGGML_PARALLEL_RANKS")
