"""The real links between ranks on CUDA cards, and the transports opened over them for a group.

`attach` is what a group calls once, after its backends are made and before anything runs. One thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import nccl
from ._ffi import ffi, lib
from .backend import Backend
from .cuda_module import cuda_api, why, words
from .dtypes import dtype
from .errors import DeviceError
from .peers import PROOF_BYTES
from .transport import LOG, TransportReport, choose, clear_peer_environment, forced_name
from .verdicts import boot_id, driver_version, is_retest_wanted, keep_verdict, read_verdict

if TYPE_CHECKING:
    from .group import Group, RankGraph

PUSH_MAX_RANKS = 8
PUSHES = ("push", "push-shm")
# Odd, misaligned, one token's, many parts of push: each proven before a transport is timed.
PROVEN_SUMS = ((1, 0), (4099, 0), (4099, 3), (65536, 0), (131075, 3), (2**21 + 5, 0))
N_TIMED_SUMS = 32


class CudaLinks:
    """The ranks' cards. Transports that were opened and not taken are freed by close().

    `proof_s` bounds each test, `wait_s` each wait of one rank's sum for another's, later too. Sums are proven in
    float32 and in `reduce_dtype`.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        host_seconds: Callable[[int], float],
        *,
        wait_s: float = 60.0,
        proof_s: float = 10.0,
        nccl_s: float | None = None,
        reduce_dtype: str = "f32",
        retest: bool = False,
    ) -> None:
        self.n_ranks = len(backends)
        self.devices = [backend.device for backend in backends]
        self.wait_s, self.proof_s, self.nccl_s = wait_s, proof_s, nccl_s or nccl.trial_deadline_s()
        self._is_retest = retest or is_retest_wanted()
        self._proven_types = [dtype(name).id for name in dict.fromkeys(("f32", reduce_dtype))]
        self._host_seconds = host_seconds
        self._handles = ffi.new("ggml_backend_t[]", [backend.handle for backend in backends])
        self._transports: dict[str, Any] = {}
        self.trial_times: dict[str, str] = {}
        self._api: Any = None
        self.cards: list[int] = []
        self.uuids: dict[str, str] = {}
        self._common = self._find_cards()
        self.library = None if self._common else nccl.find_library()

    def _find_cards(self) -> str | None:
        if self.n_ranks < 2:
            return "a single rank has nothing to sum"
        for rank, device in enumerate(self.devices):
            if device.module != "cuda" or not device.bus_id:
                return f"rank {rank} is on {device.name}, which is no CUDA card"
        bus_ids = [str(device.bus_id).split("-v")[0] for device in self.devices]
        for rank, bus_id in enumerate(bus_ids):
            if bus_ids.index(bus_id) != rank:
                return f"ranks {bus_ids.index(bus_id)} and {rank} share a card"
        self._api = cuda_api()
        if self._api is None:
            return "libpyggml-cuda.so is not built"
        for bus_id in bus_ids:
            uuid, reason = ffi.new("char[33]"), why()
            self.cards.append(self._api.find_card(bus_id.encode(), uuid, reason, len(reason)))
            if self.cards[-1] < 0:
                return words(reason)
            self.uuids[bus_id] = ffi.string(uuid).decode()
        return None

    def obstacle(self, name: str) -> str | None:
        """Why this transport cannot be here, whatever a test would say; None if it may."""
        if name == "host":
            return None
        if self._common:
            return self._common
        if name in PUSHES:
            too_many = f"{self.n_ranks} ranks; push is for up to {PUSH_MAX_RANKS}"
            return too_many if self.n_ranks > PUSH_MAX_RANKS else None
        if self.library is None:
            return "NCCL is not installed: pip install nvidia-nccl-cu13 (or -cu12)"
        if name == "nccl" and os.environ.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
            return "NCCL_P2P_DISABLE is set"
        return nccl.way_obstacle(name == "nccl")

    def copy_obstacle(self) -> str | None:
        """Why ranks cannot copy to each other's cards, whatever a test would say; None if they may."""
        return self._common

    def enable_peer(self, source: int, target: int) -> str | None:
        """Let a rank's kernels reach another's memory; why they cannot, None if they can."""
        reason = why()
        outcome = self._api.enable_peer(self.cards[source], self.cards[target], reason, len(reason))
        if outcome == lib.PGC_PEER_TOO_MANY:
            return "too many peers; CUDA allows a card 8"
        return None if outcome == lib.PGC_PEER_ENABLED else words(reason)

    def disable_peer(self, source: int, target: int) -> None:
        """Take that back."""
        self._api.disable_peer(self.cards[source], self.cards[target])

    def copy(self, source: int, target: int, payload: bytes, by_kernel: bool) -> bytes:
        """Send bytes from host to source to target to host; raises DeviceError."""
        received = ffi.new("char[]", len(payload))
        way = (self.cards[source], self.cards[target], by_kernel)
        _do(self._api.copy, *way, payload, received, len(payload), self.proof_s)
        return bytes(ffi.buffer(received))

    def known_problems(self, first: int, second: int) -> list[str] | None:
        """What an earlier proof of these two cards found since the machine started."""
        kept = None if self._is_retest else read_verdict(self._pair_facts(first, second))
        if isinstance(kept, list) and len(kept) == 2 and all(isinstance(problem, str) for problem in kept):
            LOG.info("ranks %d and %d: peer copies were tested before", first, second)
            return kept
        return None

    def keep_problems(self, first: int, second: int, problems: list[str]) -> None:
        """Keep what a proof found."""
        keep_verdict(self._pair_facts(first, second), problems)

    def _pair_facts(self, first: int, second: int) -> dict[str, object]:
        cards = list(self.uuids.items())
        return {
            "test": "peer copies and stores",
            "sizes": PROOF_BYTES,
            "driver": driver_version(),
            "boot": boot_id(),
            "cards": [cards[first], cards[second]],
        }

    def try_out(self, name: str) -> str | None:
        """NCCL's trial in a child process."""
        assert self.library is not None
        mode = "force" if self._is_retest else None
        found = nccl.verdict(self.library, self.uuids, name == "nccl", deadline_s=self.nccl_s, mode=mode)
        self.trial_times[name] = found.when
        return found.problem

    def open(self, name: str) -> None:
        """Make a transport and prove its sums; raises DeviceError."""
        if name == "host":
            return
        ranks = (self.n_ranks, self._handles)
        if name in PUSHES:
            made = _do(self._api.push_new, *ranks, name == "push-shm", self.wait_s)
        else:
            assert self.library is not None
            new = (self._api.nccl_new, self.library.path.encode(), name.encode(), *ranks, self.nccl_s)
            made = nccl.start(name == "nccl", lambda: _do(*new))
        self._transports[name] = made
        try:
            for type_id in self._proven_types:
                for n_elements, offset in PROVEN_SUMS:
                    _do(self._api.check, made, *ranks, n_elements, offset, type_id, name in PUSHES, self.proof_s)
        except DeviceError:
            self._free(name)
            raise

    def seconds(self, name: str, n_elements: int) -> float:
        """Seconds a sum, as part of a captured graph; through host memory, where none can be, by itself."""
        if name == "host":
            return self._host_seconds(n_elements)
        ranks, seconds = (self.n_ranks, self._handles), ffi.new("double *")
        try:
            made = self._transports[name]
            _do(self._api.time, made, *ranks, n_elements, N_TIMED_SUMS, True, self.proof_s, seconds)
        except DeviceError:
            self._free(name)
            raise
        return float(seconds[0])

    def mover(self, report: TransportReport) -> Any | None:
        """A way for messages between the cards whose copies were proven; None where there are none.

        Raises DeviceError.
        """
        n = self.n_ranks
        proven = [report.can_copy(source, target) for source in range(n) for target in range(n)]
        if self._common or not any(proven):
            return None
        return _do(self._api.mover_new, n, self._handles, proven)

    def take(self, name: str) -> Any:
        """The native transport, for a group to own."""
        return self._transports.pop(name)

    def _free(self, name: str) -> None:
        transport = self._transports.pop(name)
        transport.free(transport.self)

    def close(self) -> None:
        """Free what was not taken."""
        for name in list(self._transports):
            self._free(name)


def _do(function: Any, *arguments: Any) -> Any:
    """Call one of the module's functions; its reason becomes a DeviceError."""
    reason = why()
    outcome = function(*arguments, reason, len(reason))
    if not outcome:
        raise DeviceError(words(reason))
    return outcome


def attach(
    group: Group,
    *,
    transport: str | None = None,
    peers: bool = True,
    wait_s: float = 60.0,
    time_all: bool = False,
    retest: bool = False,
) -> TransportReport:
    """Choose a group's transports and hand them to it; `transport` or PYGGML_TRANSPORT forces one.

    With `retest` nothing that was found earlier counts. The group owns and frees them. Graphs must be made
    afterwards, and closed before the group.
    Raises DeviceError when a forced transport cannot be used.
    """
    forced = forced_name(transport)
    links = CudaLinks(
        group.backends, lambda n: host_seconds(group, n), wait_s=wait_s, reduce_dtype=group.reduce_dtype, retest=retest
    )
    try:
        may_reach = clear_peer_environment(peers)
        report = choose(links, forced=forced, peers=may_reach, proof_s=2 * links.proof_s, time_all=time_all)
        for span in report.spans:
            if span.name != "host":
                made = links.take(span.name)
                lib.pg_group_add_transport(group.handle, made, span.min_elements, span.max_elements)
        mover = links.mover(report)
        if mover is not None:
            lib.pg_group_set_mover(group.handle, mover)
        return report
    finally:
        links.close()


def host_seconds(group: Group, n_elements: int, n_sums: int = 4) -> float:
    """Seconds a sum through host memory takes in a group that has no transports yet."""

    def chain(graph: RankGraph, rank: int) -> None:
        graph.reduce_dtype = "f32"  # as the others are timed
        x = graph.weight(np.zeros((1, n_elements), np.float32))
        for _ in range(n_sums):
            x = graph.all_reduce(x * 1.0)

    with group.compile(chain) as graphs:
        graphs.step()
        start = time.perf_counter()
        graphs.step()
        return (time.perf_counter() - start) / n_sums
