"""The choice among transports, over fakes: links that lie, hang or run out of peers, and timings made up."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import pyggml as gg
from pyggml.cuda_links import attach
from pyggml.errors import DeviceError
from pyggml.peers import prove_pairs
from pyggml.transport import (
    MAX_ELEMENTS,
    NAMES,
    TIMED_ELEMENTS,
    Span,
    TransportReport,
    are_ranks_serial,
    choose,
    clear_peer_environment,
    forced_name,
    spans_of,
)

Copy = Callable[[bytes, bool], bytes]
STALE = b"\xa5"
PROOF_S = 0.2
SPEED = {"push": 1e-6, "nccl": 2e-6, "push-shm": 4e-6, "nccl-shm": 5e-6, "host": 50e-6}


class FakeLinks:
    """Ranks in memory. `faults` replaces the copies of some directions, the other arguments what tests answer.

    As in a process, NCCL that was started with peers, whatever came of it, cannot be used without, nor the other way.
    """

    def __init__(
        self,
        n_ranks: int = 2,
        *,
        faults: dict[tuple[int, int], Copy] | None = None,
        max_peers: int = 8,
        obstacles: dict[str, str] | None = None,
        trials: dict[str, str] | None = None,
        unopened: dict[str, str] | None = None,
        speed: dict[str, float] | None = None,
    ) -> None:
        self.n_ranks = n_ranks
        self.faults = faults or {}
        self.max_peers = max_peers
        self.obstacles = obstacles or {}
        self.trials = trials or {}
        self.unopened = unopened or {}
        self.speed = speed or SPEED
        self.enabled: set[tuple[int, int]] = set()
        self.kept: dict[tuple[int, int], list[str]] = {}
        self.n_copies = 0
        self.tried: list[str] = []
        self.trial_times: dict[str, str] = {}
        self.started: str | None = None

    def obstacle(self, name: str) -> str | None:
        if name.startswith("nccl") and self.started not in (None, name):
            return f"this process has started {self.started}"
        return self.obstacles.get(name)

    def copy_obstacle(self) -> str | None:
        return self.obstacles.get("copies")

    def enable_peer(self, source: int, target: int) -> str | None:
        if sum(s == source for s, _ in self.enabled) >= self.max_peers:
            return "too many peers"
        self.enabled.add((source, target))
        return None

    def disable_peer(self, source: int, target: int) -> None:
        self.enabled.discard((source, target))

    def copy(self, source: int, target: int, payload: bytes, by_kernel: bool) -> bytes:
        assert (source, target) in self.enabled
        self.n_copies += 1
        return self.faults.get((source, target), lambda sent, _: sent)(payload, by_kernel)

    def known_problems(self, first: int, second: int) -> list[str] | None:
        return self.kept.get((first, second))

    def keep_problems(self, first: int, second: int, problems: list[str]) -> None:
        self.kept[first, second] = problems

    def try_out(self, name: str) -> str | None:
        self.tried.append(name)
        self.trial_times[name] = "earlier"
        return self.trials.get(name)

    def open(self, name: str) -> None:
        if name.startswith("nccl"):
            self.started = name
        if name in self.unopened:
            raise DeviceError(self.unopened[name])

    def seconds(self, name: str, n_elements: int) -> float:
        return self.speed[name] * (1 + n_elements / 1e6)


def leave_target(sent: bytes, by_kernel: bool) -> bytes:
    return STALE * len(sent)


def drop_tail(sent: bytes, by_kernel: bool) -> bytes:
    return sent[:-64] + STALE * 64


def flip_a_bit(sent: bytes, by_kernel: bool) -> bytes:
    return sent[:40] + bytes([sent[40] ^ 1]) + sent[41:]


def lose_large_tails(sent: bytes, by_kernel: bool) -> bytes:
    return sent if len(sent) < 2**20 else sent[: 2**20] + STALE * (len(sent) - 2**20)


def lose_stores(sent: bytes, by_kernel: bool) -> bytes:
    return STALE * len(sent) if by_kernel else sent


def refuse(sent: bytes, by_kernel: bool) -> bytes:
    raise DeviceError("an illegal access")


def never_return(sent: bytes, by_kernel: bool) -> bytes:
    time.sleep(PROOF_S * 20)
    return sent


FAULTS: dict[Copy, str] = {
    leave_target: "copies of 64 bytes: 6[0-4] bytes are wrong, the first at",
    drop_tail: "copies of 64 bytes: 6[0-4] bytes are wrong",
    flip_a_bit: "copies of 64 bytes: 1 bytes are wrong, the first at 40",
    lose_large_tails: r"1,048,589 bytes: only the last 64 bytes are wrong",
    lose_stores: "stores of 64 bytes",
    refuse: "an illegal access",
    never_return: r"did not end in 0.2 s",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_lying_pair_is_closed_in_both_directions_and_no_other_is(fault: Copy) -> None:
    links = FakeLinks(3, faults={(1, 0): fault})
    start = time.monotonic()
    proofs = {(p.source, p.target): p for p in prove_pairs(links, PROOF_S)}
    assert time.monotonic() - start < PROOF_S * 10
    assert {pair for pair, proof in proofs.items() if not proof.passed} == {(0, 1), (1, 0)}
    assert re.search(FAULTS[fault], str(proofs[1, 0]))
    assert links.enabled == {(0, 2), (2, 0), (1, 2), (2, 1)}


def test_the_first_bad_direction_ends_a_pairs_proof() -> None:
    links = FakeLinks(faults={(0, 1): leave_target, (1, 0): never_return})
    problems = [p.problem for p in prove_pairs(links, PROOF_S)]
    assert links.n_copies == 1 and problems[1] == "closed, since the other direction failed"
    assert links.kept[0, 1] == [problems[0], ""]


def test_after_two_pairs_that_hang_the_others_are_left_for_another_time() -> None:
    faults = {(a, b): never_return for a in range(8) for b in range(8) if a != b}
    links = FakeLinks(8, faults=faults)
    for n_copies, is_known in ((2, False), (2, True)):  # a later start knows both, and tests no others either
        proofs = prove_pairs(links, PROOF_S)
        assert len(proofs) == 56 and all(proof.is_lying for proof in proofs) and not links.enabled
        assert links.n_copies == n_copies and list(links.kept) == [(0, 1), (0, 2)]
        assert [proof.is_cached for proof in proofs[:4]] == [is_known] * 4
        assert proofs[4].problem == "not tested, since copies of 2 pairs did not end"
    links.kept.clear()  # as doctor --retest does
    links.faults = {(0, 1): never_return}
    proofs = prove_pairs(links, PROOF_S)
    assert {(p.source, p.target) for p in proofs if not p.passed} == {(0, 1), (1, 0)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("has_push", "used"), [(True, "push-shm"), (False, "nccl-shm")])
def test_where_every_pair_lies_what_needs_no_peers_stays(fault: Copy, has_push: bool, used: str) -> None:
    faults = {(a, b): fault for a in range(3) for b in range(3) if a != b}
    links = FakeLinks(3, faults=faults, obstacles={} if has_push else {"push-shm": "9 ranks"})
    report = choose(links, proof_s=PROOF_S)
    assert [row.name for row in report.rows if row.passed] == [used, "nccl-shm", "host"][not has_push :]
    assert links.tried == ["nccl-shm"] and not links.enabled
    assert report.name_for(4096) == used


def test_each_failing_direction_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyggml.transport"):
        choose(FakeLinks(3, faults={(0, 1): leave_target}), proof_s=PROOF_S)
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in told] == ["rank 0 to rank 1", "rank 1 to rank 0"]
    assert all("host memory" in line for line in told)


def test_too_many_peers_leave_the_rest_host_staged_and_nccl_in_use() -> None:
    links = FakeLinks(4, max_peers=2)
    report = choose(links, proof_s=PROOF_S)
    assert "too many peers" in report.row("push").reason
    assert report.name_for(1) == "nccl"
    assert report.can_copy(0, 1) and report.can_copy(0, 2) and not report.can_copy(0, 3)


def test_pairs_are_closed_after_their_proof_where_push_cannot_use_them() -> None:
    links = FakeLinks(10, max_peers=8, obstacles={"push": "10 ranks"})
    report = choose(links, proof_s=PROOF_S)
    assert not links.enabled and all(pair.passed for pair in report.pairs) and len(report.pairs) == 90


NO_NCCL = {"push": "10 ranks", "push-shm": "10 ranks", "nccl": "not installed", "nccl-shm": "not installed"}


def test_pairs_are_proven_for_messages_where_no_transport_needs_them() -> None:
    links = FakeLinks(10, faults={(3, 4): drop_tail}, obstacles=NO_NCCL)
    report = choose(links, proof_s=PROOF_S)
    assert report.name_for(1) == "host"
    assert {(p.source, p.target) for p in report.pairs if not report.can_copy(p.source, p.target)} == {(3, 4), (4, 3)}
    assert len(report.pairs) == 90
    # Each card has the next one open, far below CUDA's 8.
    steps = {(i, i + 1) for i in range(9) if i != 3}
    assert links.enabled == steps | {(b, a) for a, b in steps}


@pytest.mark.parametrize(
    ("obstacles", "options"),
    [
        ({**NO_NCCL, "copies": "rank 0 is on cpu"}, {}),
        (NO_NCCL, {"peers": False}),
        (NO_NCCL, {"forced": "host"}),
        ({}, {"forced": "push-shm"}),
    ],
)
def test_no_pair_is_touched_where_copies_cannot_be_or_are_not_wanted(
    obstacles: dict[str, str], options: dict[str, Any]
) -> None:
    links = FakeLinks(10, obstacles=obstacles)
    assert choose(links, proof_s=PROOF_S, **options).pairs == [] and links.n_copies == 0


def test_healthy_links_use_the_fastest_and_skip_second_choices() -> None:
    links = FakeLinks()
    report = choose(links, proof_s=PROOF_S)
    assert report.spans == [Span("push", 0, MAX_ELEMENTS)]
    assert [row.name for row in report.rows if row.passed] == ["push", "nccl", "host"]
    assert report.row("push-shm").reason == "not needed: push works with peer access"
    assert links.tried == ["nccl"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"obstacles": {"push": "9 ranks"}}, "9 ranks"),
        ({"unopened": {"push": "sums of 1 elements: wrong"}}, "sums of 1 elements: wrong"),
    ],
)
def test_a_transport_that_fails_is_passed_over_with_its_reason(options: dict[str, Any], reason: str) -> None:
    report = choose(FakeLinks(**options), proof_s=PROOF_S)
    assert (report.row("push").passed, report.row("push").reason) == (False, reason)
    assert report.name_for(4096) == "nccl"


def test_nccl_whose_trial_hangs_is_tried_without_peers() -> None:
    links = FakeLinks(trials={"nccl": "did not end within 20 s"})
    report = choose(links, proof_s=PROOF_S)
    assert links.tried == ["nccl", "nccl-shm"] and report.row("nccl-shm").passed


def test_nccl_that_fails_after_it_was_started_leaves_no_other_nccl() -> None:
    links = FakeLinks(9, unopened={"nccl": "wrong sums"}, obstacles={"push": "9 ranks", "push-shm": "9 ranks"})
    report = choose(links, proof_s=PROOF_S)
    assert report.row("nccl").reason == "wrong sums" and report.name_for(1) == "host"
    assert report.row("nccl-shm").reason == "this process has started nccl"
    assert links.tried == ["nccl"]  # no trial of what could not be used


def test_a_timing_that_fails_rejects_the_transport() -> None:
    class Failing(FakeLinks):
        def seconds(self, name: str, n_elements: int) -> float:
            if name == "push" and n_elements > 65536:
                raise DeviceError("rank 1 did not come")
            return super().seconds(name, n_elements)

    report = choose(Failing(), proof_s=PROOF_S)
    assert report.row("push").reason == "rank 1 did not come" and report.row("push").seconds == {}
    assert report.name_for(1) == "nccl"


def test_without_peers_no_pair_is_touched() -> None:
    links = FakeLinks(faults={(0, 1): never_return})
    report = choose(links, peers=False, proof_s=PROOF_S)
    assert [row.name for row in report.rows if row.passed] == ["push-shm", "nccl-shm", "host"]
    assert report.pairs == [] and report.row("push").reason == "peer access is switched off"


def test_host_alone_is_timed_only_on_request() -> None:
    obstacles = dict.fromkeys((*NAMES[:4], "copies"), "rank 0 is on cpu")
    assert choose(FakeLinks(obstacles=obstacles)).row("host").seconds == {}
    timed = choose(FakeLinks(obstacles=obstacles), time_all=True).row("host")
    assert tuple(timed.seconds) == TIMED_ELEMENTS


# Forcing


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_transport_takes_every_size(name: str) -> None:
    report = choose(FakeLinks(), forced=name, proof_s=PROOF_S)
    assert report.spans == [Span(name, 0, MAX_ELEMENTS)]
    assert {row.reason for row in report.rows if row.name != name} == {f"{name} is forced"}


def test_a_forced_transport_that_fails_names_those_that_would_work() -> None:
    links = FakeLinks(3, faults={(0, 1): drop_tail})
    with pytest.raises(
        DeviceError, match=r"transport push cannot be used here: rank 0 .*would work: push-shm, nccl-shm, host"
    ):
        choose(links, forced="push", proof_s=PROOF_S)


@pytest.mark.parametrize(
    ("option", "variable", "name"),
    [
        (None, "", None),
        ("auto", "host", None),
        ("NCCL-shm", "", "nccl-shm"),
        (None, "host", "host"),
        ("push", "host", "push"),
    ],
)
def test_the_option_wins_over_the_variable(option: str | None, variable: str, name: str | None) -> None:
    os.environ["PYGGML_TRANSPORT"] = variable
    assert forced_name(option) == name


def test_an_unknown_transport_is_refused_with_the_names() -> None:
    with pytest.raises(
        DeviceError, match=r"transport 'nvlink' does not exist; there are push, nccl, push-shm, nccl-shm, host"
    ):
        forced_name("nvlink")


# Sizes


def by_size(*seconds: float) -> dict[int, float]:
    return dict(zip((100, 10000, 1000000), seconds))


def test_the_fastest_takes_its_sizes_and_the_border_lies_between() -> None:
    spans = spans_of({"push": by_size(1, 2, 9), "nccl": by_size(2, 3, 4), "host": by_size(9, 9, 9)})
    assert spans == [Span("push", 0, 100000), Span("nccl", 100001, MAX_ELEMENTS)]


@pytest.mark.parametrize(("n_elements", "name"), [(99999, "push"), (100000, "push"), (100001, "nccl")])
def test_a_sum_beside_the_border_goes_to_the_right_side(n_elements: int, name: str) -> None:
    spans = spans_of({"push": by_size(1, 2, 9), "nccl": by_size(2, 3, 4)})
    assert TransportReport([], [], spans).name_for(n_elements) == name


def test_a_transport_that_is_a_hair_slower_in_the_middle_keeps_one_range() -> None:
    assert spans_of({"push": by_size(1, 2.01, 3), "nccl": by_size(2, 2, 6)}) == [
        Span("push", 0, MAX_ELEMENTS)
    ]


def test_equal_times_go_to_the_first_name() -> None:
    assert spans_of({"host": by_size(1, 1, 1), "nccl": by_size(1, 1, 1)})[0].name == "nccl"


# Report


def test_the_table_marks_what_is_used_and_tells_reasons() -> None:
    report = choose(FakeLinks(3, faults={(0, 1): leave_target}), proof_s=PROOF_S)
    lines = report.table().splitlines()
    assert "65,536" in lines[0] and lines[1].startswith("push") and "rank 0 to rank 1" in lines[1]
    assert lines[3].count("us*") == len(TIMED_ELEMENTS) and "us*" not in lines[4]
    assert lines[-1].startswith("rank 1 to rank 0")


def test_the_report_is_json() -> None:
    found = json.loads(json.dumps(choose(FakeLinks(), proof_s=PROOF_S).as_dict()))
    assert found["chosen"] == [{"name": "push", "min_elements": 0, "max_elements": MAX_ELEMENTS}]
    assert found["pairs"][0] == {"source": 0, "target": 1, "problem": "", "is_lying": False, "is_cached": False}


# ggml's own switch


@pytest.mark.parametrize(
    ("ours", "ggmls", "peers", "may_reach", "left"),
    [
        (None, None, True, True, None),
        (None, "1", True, True, "1"),
        (None, "0", True, False, None),
        ("off", "1", True, False, None),
        (None, "1", False, False, None),
        ("0", None, True, False, None),
    ],
)
def test_peers_off_unsets_ggmls_variable_and_nothing_sets_it(
    ours: str | None, ggmls: str | None, peers: bool, may_reach: bool, left: str | None
) -> None:
    for name, value in (("PYGGML_P2P", ours), ("GGML_CUDA_P2P", ggmls)):
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    assert clear_peer_environment(peers) == may_reach
    assert os.environ.get("GGML_CUDA_P2P") == left


def test_ggmls_off_still_counts_when_its_modules_were_loaded() -> None:
    # Loading takes the variable away, since ggml would take it for "on".
    script = (
        "import os, pyggml as gg\n"
        "from pyggml.transport import clear_peer_environment\n"
        "gg.devices()\n"
        "print('GGML_CUDA_P2P' in os.environ, clear_peer_environment(True))"
    )
    for said, answer in (("0", "False False"), ("1", "True True")):
        env = {**os.environ, "GGML_CUDA_P2P": said}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == answer


@pytest.mark.parametrize(("name", "is_on"), [("PYGGML_P2P", clear_peer_environment), ("PYGGML_PARALLEL_RANKS", None)])
@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("", True), ("1", True), ("on", True), ("TRUE", True), (" yes ", True),
        ("0", False), ("Off", False), ("false", False), ("no", False),
        ("maybe", None), ("none", None), ("2", None),
    ],
)  # fmt: skip
def test_a_switch_is_on_or_off_or_refused(
    name: str, is_on: Callable[[bool], bool] | None, word: str, meaning: bool | None
) -> None:
    os.environ.pop("GGML_CUDA_P2P", None)
    os.environ[name] = word

    def found() -> bool:
        return is_on(True) if is_on else not are_ranks_serial()

    if meaning is not None:
        assert found() is meaning
        return
    with pytest.raises(DeviceError, match=f"{name}={word}; one of 0, off, no, false, 1, on, yes, true is needed"):
        found()


# Groups


def test_a_group_of_cpu_ranks_sums_through_host_memory() -> None:
    with gg.Group(["cpu"] * 3, threads=1) as group:
        report = attach(group, time_all=True)
        assert report.spans == [Span("host", 0, MAX_ELEMENTS)]
        assert "rank 0 is on cpu" in report.row("push").reason
        assert all(seconds > 0 for seconds in report.row("host").seconds.values())


def test_a_group_refuses_a_transport_that_its_devices_lack() -> None:
    with gg.Group(["cpu"] * 2, threads=1) as group, pytest.raises(DeviceError, match="would work: host"):
        attach(group, transport="nccl")
