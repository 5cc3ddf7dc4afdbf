"""The links of CUDA ranks over a stand-in for the native module: obstacles, reasons, and who frees what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pyggml as gg
from pyggml import cuda_links, nccl
from pyggml._ffi import ffi, lib
from pyggml.cuda_links import PROVEN_SUMS, CudaLinks
from pyggml.errors import DeviceError
from pyggml.peers import PairProof, prove_pairs
from pyggml.transport import NAMES, choose


@dataclass
class FakeDevice:
    name: str
    module: str = "cuda"
    bus_id: str | None = None


@dataclass
class FakeBackend:
    device: FakeDevice
    handle: Any = ffi.NULL


class FakeModule:
    """The native module's table in Python; `failing` maps a function's name to its reason."""

    def __init__(self, failing: dict[str, str] | None = None) -> None:
        self.failing = failing or {}
        self.freed: list[str] = []
        self.checked: list[tuple[int, int, bool]] = []
        self.checked_types: list[str] = []
        self.waits: dict[str, float] = {}
        self.p2p_disabled: dict[str, str | None] = {}
        self.may_copy: list[bool] | None = None
        self._kept: list[Any] = []

    def _outcome(self, function: str, buffer: Any, size: int) -> bool:
        words = self.failing.get(function, "").encode()
        ffi.memmove(buffer, words + b"\0", len(words) + 1)
        return not words

    def find_card(self, bus_id: bytes, uuid: Any, *reason: Any) -> int:
        ffi.memmove(uuid, bus_id[5:7] * 16, 32)
        return int(bus_id[5:7], 16) if self._outcome("find_card", *reason) else -1

    def enable_peer(self, card: int, peer: int, *reason: Any) -> int:
        if self._outcome("enable_peer", *reason):
            return int(lib.PGC_PEER_ENABLED)
        return int(
            lib.PGC_PEER_TOO_MANY if "too many" in self.failing["enable_peer"] else lib.PGC_PEER_ABSENT
        )

    def disable_peer(self, card: int, peer: int) -> None:
        pass

    def copy(
        self, source: int, target: int, by_kernel: bool, sent: bytes, received: Any, size: int, *rest: Any
    ) -> bool:
        ffi.memmove(received, sent, size)
        return self._outcome("copy", *rest[1:])

    def _made(self, name: str) -> Any:
        transport = ffi.new("pg_transport *")
        free = ffi.callback("void(void *)", lambda _: self.freed.append(name))
        transport.free = free
        self._kept += [transport, free]
        return transport

    def push_new(
        self, n_ranks: int, backends: Any, is_through_host: bool, wait_s: float, *reason: Any
    ) -> Any:
        name = "push-shm" if is_through_host else "push"
        self.waits[name] = wait_s
        return self._made(name) if self._outcome("push_new", *reason) else ffi.NULL

    def nccl_new(
        self, library: bytes, name: bytes, n_ranks: int, backends: Any, wait_s: float, *reason: Any
    ) -> Any:
        self.p2p_disabled[name.decode()] = os.environ.get("NCCL_P2P_DISABLE")
        return self._made(name.decode()) if self._outcome("nccl_new", *reason) else ffi.NULL

    def mover_new(self, n_ranks: int, backends: Any, may_copy: list[bool], *reason: Any) -> Any:
        self.may_copy = list(may_copy)
        return "a mover" if self._outcome("mover_new", *reason) else ffi.NULL

    def check(
        self, made: Any, n: int, backends: Any, n_elements: int, offset: int, type_id: int, ordered: bool, *rest: Any
    ) -> bool:
        self.checked.append((n_elements, offset, ordered))
        self.checked_types.append(ffi.string(lib.ggml_type_name(type_id)).decode())
        return self._outcome("check", *rest[1:])

    def time(
        self, made: Any, n: int, backends: Any, n_elements: int, repeats: int, captured: bool, *rest: Any
    ) -> bool:
        rest[1][0] = n_elements * 1e-9
        return self._outcome("time", *rest[2:])


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """NCCL is there and works, this process has not used it, and nothing was found earlier."""
    os.environ.pop("NCCL_P2P_DISABLE", None)
    os.environ["PYGGML_CACHE"] = str(tmp_path)
    monkeypatch.setattr(nccl, "_used_with_peers", None)
    monkeypatch.setattr(nccl, "find_library", lambda: nccl.Library("/l/libnccl.so.2", 22703))
    monkeypatch.setattr(nccl, "verdict", lambda *a, **k: nccl.Verdict(None, 1.0, 20.0))
    yield


def links_of(
    monkeypatch: pytest.MonkeyPatch, module: FakeModule | None, *bus_ids: str, **options: Any
) -> CudaLinks:
    monkeypatch.setattr(cuda_links, "cuda_api", lambda: module)
    backends: Any = [FakeBackend(FakeDevice(f"cuda:{i}", bus_id=bus_id)) for i, bus_id in enumerate(bus_ids)]
    return CudaLinks(backends, lambda n: 1.0, wait_s=33.0, **options)


TWO = ("0000:1b:00.0", "0000:3a:00.0")


def test_the_cards_numbers_and_uuids_come_from_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    links = links_of(monkeypatch, FakeModule(), *TWO)
    assert links.cards == [0x1B, 0x3A]
    assert links.uuids == {TWO[0]: "1b" * 16, TWO[1]: "3a" * 16}
    assert [links.obstacle(name) for name in NAMES] == [None] * 5


@pytest.mark.parametrize(
    ("bus_ids", "words"),
    [
        (TWO[:1], "a single rank"),
        ((TWO[0], TWO[0]), "ranks 0 and 1 share a card"),
        ((*TWO, f"{TWO[0]}-v2"), "ranks 0 and 2 share a card"),
        ([f"0000:{i:02x}:00.0" for i in range(9)], "9 ranks; push is for up to 8"),
    ],
)
def test_where_push_cannot_be(bus_ids: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert words in str(links_of(monkeypatch, FakeModule(), *bus_ids).obstacle("push"))


@pytest.mark.parametrize(("asked", "proven"), [("f32", ["f32"]), ("bf16", ["f32", "bf16"]), ("f16", ["f32", "f16"])])
def test_sums_are_proven_in_the_types_in_which_they_travel(
    asked: str, proven: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = FakeModule()
    links_of(monkeypatch, module, *TWO, reduce_dtype=asked).open("push")
    assert module.checked_types == [name for name in proven for _ in PROVEN_SUMS]


def test_nine_cards_still_have_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    links = links_of(monkeypatch, FakeModule(), *[f"0000:{i:02x}:00.0" for i in range(9)])
    assert links.obstacle("nccl") is None


def test_without_the_module_nothing_but_host_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    links = links_of(monkeypatch, None, *TWO)
    assert [links.obstacle(name) for name in NAMES] == ["libpyggml-cuda.so is not built"] * 4 + [None]


def test_without_nccl_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "find_library", lambda: None)
    links = links_of(monkeypatch, FakeModule(), *TWO)
    assert "pip install nvidia-nccl" in str(links.obstacle("nccl")) and links.obstacle("push") is None


def test_a_users_nccls_switch_leaves_only_the_way_without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    os.environ["NCCL_P2P_DISABLE"] = "1"
    links = links_of(monkeypatch, FakeModule(), *TWO)
    assert (links.obstacle("nccl"), links.obstacle("nccl-shm")) == ("NCCL_P2P_DISABLE is set", None)


def test_healthy_cards_choose_by_size_and_free_what_nobody_took(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    links = links_of(monkeypatch, module, *TWO)
    report = choose(links)
    assert [row.name for row in report.rows if row.passed] == ["push", "nccl", "host"]
    assert module.waits == {"push": 33.0}
    assert {(n % 4 > 0, offset % 4 > 0) for n, offset, _ in module.checked} >= {
        (True, False),
        (True, True),
        (False, False),
    }
    assert {ordered for *_, ordered in module.checked[:5]} == {True}
    taken = links.take("push")
    links.close()
    assert module.freed == ["nccl"] and taken.free != ffi.NULL


def test_without_peers_push_goes_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeModule()
    links = links_of(monkeypatch, module, *TWO)
    report = choose(links, peers=False)
    assert [row.name for row in report.rows if row.passed] == ["push-shm", "nccl-shm", "host"]
    assert module.waits == {"push-shm": 33.0}
    assert {ordered for *_, ordered in module.checked[: len(PROVEN_SUMS)]} == {True}
    links.close()
    assert sorted(module.freed) == ["nccl-shm", "push-shm"]


@pytest.mark.parametrize("function", ["push_new", "check", "time"])
def test_a_transport_that_fails_is_freed_at_once_and_tells_why(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = FakeModule({function: "rank 1 is broken"})
    links = links_of(monkeypatch, module, *TWO)
    report = choose(links)
    for name in ("push", "push-shm"):
        assert "rank 1 is broken" in report.row(name).reason and not report.row(name).passed
        assert module.freed.count(name) == (0 if function == "push_new" else 1)
    n_freed = len(module.freed)
    links.close()
    assert set(module.freed[n_freed:]) <= {"nccl", "nccl-shm"}


def test_copies_come_back_and_their_failures_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert links_of(monkeypatch, FakeModule(), *TWO).copy(0, 1, b"\0abc\xff", True) == b"\0abc\xff"
    with pytest.raises(DeviceError, match="an illegal access"):
        links_of(monkeypatch, FakeModule({"copy": "an illegal access"}), *TWO).copy(0, 1, b"abc", False)


@pytest.mark.parametrize(
    ("reason", "told"),
    [("too many", "too many peers; CUDA allows a card 8"), ("no peer access", "no peer access")],
)
def test_peers_that_cannot_be_enabled_say_why(
    reason: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert links_of(monkeypatch, FakeModule({"enable_peer": reason}), *TWO).enable_peer(0, 1) == told


NINE = [f"0000:{i:02x}:00.0" for i in range(9)]


def test_a_group_without_peers_leaves_no_setting_behind_and_the_next_one_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FakeModule()
    choose(links_of(monkeypatch, module, *TWO), peers=False)
    assert module.p2p_disabled == {"nccl-shm": "1"} and "NCCL_P2P_DISABLE" not in os.environ
    monkeypatch.setattr(nccl, "verdict", lambda *a, **k: pytest.fail("a trial of what cannot be used"))
    links = links_of(monkeypatch, module, *TWO)
    assert links.obstacle("nccl-shm") is None
    assert "this process has started nccl-shm" in str(links.obstacle("nccl"))


@pytest.mark.parametrize("function", ["nccl_new", "check", "time"])
def test_nccl_that_fails_once_started_says_why_no_other_nccl_is_tried(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = FakeModule({function: "NCCL did not start: system error" if function == "nccl_new" else "wrong"})
    report = choose(links_of(monkeypatch, module, *NINE))
    assert list(module.p2p_disabled) == ["nccl"] and report.name_for(1) == "host"
    assert report.row("nccl-shm").reason == (
        "this process has started nccl, and NCCL reads its settings once a process; "
        "nccl-shm needs a process of its own"
    )


def test_nccl_that_could_not_be_started_at_all_is_tried_without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(FakeModule):
        def nccl_new(self, library: bytes, name: bytes, *rest: Any) -> Any:
            self.failing = {"nccl_new": "cudaStreamCreate: out of memory"} if name == b"nccl" else {}
            return super().nccl_new(library, name, *rest)

    module = Early()
    report = choose(links_of(monkeypatch, module, *NINE))
    assert module.p2p_disabled == {"nccl": None, "nccl-shm": "1"}
    assert report.row("nccl-shm").passed and report.name_for(1) == "nccl-shm"


# Messages


class Lying(FakeModule):
    """Cards of which some directions lose what is copied."""

    def __init__(self, *lies: tuple[int, int]) -> None:
        super().__init__()
        self.lies = lies

    def copy(
        self, source: int, target: int, by_kernel: bool, sent: bytes, received: Any, size: int, *rest: Any
    ) -> bool:
        ffi.memmove(received, bytes(size) if (source, target) in self.lies else sent, size)
        return True


@pytest.mark.parametrize("n", [3, 9])
@pytest.mark.parametrize("has_nccl", [True, False])
def test_messages_go_from_card_to_card_where_copies_were_proven_and_nowhere_else(
    n: int, has_nccl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_nccl:
        monkeypatch.setattr(nccl, "find_library", lambda: None)
    module = Lying((1, 0))
    links = links_of(monkeypatch, module, *NINE[:n])
    assert links.mover(choose(links)) == "a mover"
    lying = {(0, 1), (1, 0)}
    assert module.may_copy == [a != b and (a, b) not in lying for a in range(n) for b in range(n)]


def test_without_a_proven_pair_there_is_no_way_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Lying((0, 1))
    links = links_of(monkeypatch, module, *NINE[:2])
    assert links.mover(choose(links)) is None and links.mover(choose(links, peers=False)) is None
    no_cards = links_of(monkeypatch, module, TWO[0], TWO[0])
    assert no_cards.copy_obstacle() == "ranks 0 and 1 share a card"
    assert no_cards.mover(choose(no_cards)) is None and module.may_copy is None


def test_a_way_for_messages_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    links = links_of(monkeypatch, FakeModule({"mover_new": "ranks 0 and 1 share a card"}), *TWO)
    with pytest.raises(DeviceError, match="ranks 0 and 1 share a card"):
        links.mover(choose(links))


# What was found earlier


class Counting(FakeModule):
    """Cards whose copies are counted; those of some are wrong."""

    def __init__(self, *, is_wrong: bool = False) -> None:
        super().__init__()
        self.n_copies, self.is_wrong = 0, is_wrong

    def copy(
        self, source: int, target: int, by_kernel: bool, sent: bytes, received: Any, size: int, *rest: Any
    ) -> bool:
        self.n_copies += 1
        ffi.memmove(received, bytes(size) if self.is_wrong else sent, size)
        return True


def proofs(monkeypatch: pytest.MonkeyPatch, module: Counting, *bus_ids: str, **options: Any) -> list[PairProof]:
    return prove_pairs(links_of(monkeypatch, module, *(bus_ids or TWO), **options), 10.0)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_pairs_are_tested_once_and_what_was_found_holds(is_wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Counting(is_wrong=is_wrong), Counting(is_wrong=not is_wrong)
    found = proofs(monkeypatch, first)
    again = proofs(monkeypatch, second)
    assert first.n_copies and not second.n_copies
    assert [p.problem for p in again] == [p.problem for p in found]
    assert [p.passed for p in again] == [not is_wrong] * 2
    assert [p.is_lying for p in again] == [is_wrong] * 2
    assert [p.is_cached for p in found + again] == [False, False, True, True]
    assert ("found earlier; doctor --retest tries again" in str(again[0])) == is_wrong


@pytest.mark.parametrize("way", ["option", "environment"])
def test_retest_ignores_what_was_found_and_keeps_what_it_finds(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs(monkeypatch, Counting(is_wrong=True))
    if way == "environment":
        monkeypatch.setenv("PYGGML_RETEST", "1")
    mended = proofs(monkeypatch, Counting(), **({"retest": True} if way == "option" else {}))
    assert all(p.passed for p in mended)
    monkeypatch.delenv("PYGGML_RETEST", raising=False)
    assert all(p.passed and p.is_cached for p in proofs(monkeypatch, Counting(is_wrong=True)))


@pytest.mark.parametrize("change", ["driver", "boot", "card", "order"])
def test_pairs_are_tested_anew_on_another_machine(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs(monkeypatch, Counting())
    bus_ids = {"card": (TWO[0], "0000:4d:00.0"), "order": TWO[::-1]}.get(change, TWO)
    if change in ("driver", "boot"):
        function = {"driver": "driver_version", "boot": "boot_id"}[change]
        monkeypatch.setattr(cuda_links, function, lambda: "another")
    again = Counting()
    proofs(monkeypatch, again, *bus_ids)
    assert again.n_copies


@pytest.mark.parametrize("damage", ["", "{", '{"verdict": ["", 1]}', '{"verdict": [""]}', '{"verdict": "x"}'])
def test_a_damaged_verdict_on_a_pair_is_as_none(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proofs(monkeypatch, Counting())
    (kept,) = (tmp_path / "verdicts").glob("*.json")
    kept.write_text(damage)
    again = Counting()
    assert all(p.passed for p in proofs(monkeypatch, again)) and again.n_copies


def test_retest_repeats_nccls_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str | None] = []
    monkeypatch.setattr(
        nccl,
        "verdict",
        lambda *_, mode, **__: modes.append(mode) or nccl.Verdict(None, 1.0, 20.0, when="now" if mode else "earlier"),
    )
    for retest in (False, True):
        links = links_of(monkeypatch, FakeModule(), *TWO, retest=retest)
        links.try_out("nccl")
        assert links.trial_times == {"nccl": "now" if retest else "earlier"}
    assert modes == [None, "force"]


def test_a_group_hands_retest_to_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    original = CudaLinks.__init__

    def noted(self: CudaLinks, *arguments: Any, retest: bool = False, **options: Any) -> None:
        asked.append(retest)
        original(self, *arguments, retest=retest, **options)

    monkeypatch.setattr(CudaLinks, "__init__", noted)
    for retest in (False, True):
        gg.Group(["cpu", "cpu"], threads=1, retest=retest).close()
    assert asked == [False, True]
