"""NCCL's trial in a child process, its cached verdicts and its settings; no child here needs NCCL or a GPU."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml import nccl, verdicts
from pyggml.errors import DeviceError
from pyggml.nccl import Library, Verdict

LIBRARY = Library("/somewhere/libnccl.so.2", 22703)
CARDS = {"0000:1b:00.0": "a" * 32, "0000:3a:00.0": "b" * 32}
RIGHT = Verdict(None, 1.0, 20.0)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of the test's own, and a process that has not used NCCL."""
    os.environ["PYGGML_CACHE"] = str(tmp_path)
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    monkeypatch.setattr(nccl, "_used_with_peers", None)
    yield


def watched(script: str, deadline_s: float = 20.0) -> Verdict:
    return nccl.watch([sys.executable, "-c", script], os.environ, deadline_s)


# The child


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("print('NCCL INFO'); print('{\"problem\": null}'); print('NCCL INFO bye')", None),
        ('print(\'{"problem": "rank 1: wrong sums"}\')', "rank 1: wrong sums"),
        ("raise SystemExit('no card')", "the trial ended with status 1: no card"),
        ("import os; os.abort()", "the trial ended by signal 6: it said nothing"),
    ],
)
def test_a_childs_words_or_its_end_are_the_verdict(script: str, problem: str | None) -> None:
    assert watched(script).problem == problem


def test_a_hanging_child_and_its_own_children_are_killed_at_the_deadline(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text(f'{{os.getpid()}} {{inner.pid}}')\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    verdict = watched(script, deadline_s=2.0)
    assert verdict.expired and verdict.problem == "a sum over the cards did not end within 2 s"
    assert time.monotonic() - start < 20
    for pid in (tmp_path / "pids").read_text().split():
        assert _is_gone(int(pid))


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_the_real_child_runs_and_says_what_is_missing() -> None:
    verdict = nccl.run_trial(Library("libnccl-of-nobody.so", 1), list(CARDS), peers=True, deadline_s=60)
    assert verdict.problem and "trial ended" not in verdict.problem and not verdict.expired


# The cache


class Trials:
    """Stands for run_trial: counts, and gives one verdict."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
        self.n, self.verdict = 0, verdict
        monkeypatch.setattr(nccl, "run_trial", self)

    def __call__(self, library: Library, bus_ids: list[str], peers: bool, deadline_s: float) -> Verdict:
        self.n += 1
        return self.verdict


def test_a_verdict_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, RIGHT)
    found = [nccl.verdict(LIBRARY, CARDS, True) for _ in range(3)]
    assert found == [replace(RIGHT, when=when) for when in ("now", "earlier", "earlier")]
    assert trials.n == 1


def test_a_hang_is_kept_as_broken_until_there_is_more_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, Verdict("did not end", 20.0, 20.0, expired=True))
    for deadline_s in (20.0, 20.0, 10.0):
        assert nccl.verdict(LIBRARY, CARDS, True, deadline_s=deadline_s).problem == "did not end"
    assert trials.n == 1
    nccl.verdict(LIBRARY, CARDS, True, deadline_s=60.0)
    assert trials.n == 2


@pytest.mark.parametrize("change", ["library", "cards", "peers", "driver", "boot", "settings"])
def test_another_machine_or_setting_is_tried_anew(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, RIGHT)
    nccl.verdict(LIBRARY, CARDS, True)
    library = Library(LIBRARY.path, 22800) if change == "library" else LIBRARY
    cards = {**CARDS, "0000:3a:00.0": "c" * 32} if change == "cards" else CARDS
    if change in ("driver", "boot"):
        function = {"driver": "driver_version", "boot": "boot_id"}[change]
        monkeypatch.setattr(nccl, function, lambda: "another")
    if change == "settings":
        os.environ["NCCL_ALGO"] = "Ring"
    nccl.verdict(library, cards, change != "peers")
    assert trials.n == 2


def test_what_was_broken_is_tried_again_after_a_reboot_and_holds_within_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, Verdict("wrong sums", 1.0, 20.0))
    for boot, n in (("first", 1), ("first", 1), ("second", 2), ("second", 2)):
        monkeypatch.setattr(nccl, "boot_id", lambda boot=boot: boot)
        assert nccl.verdict(LIBRARY, CARDS, True).problem == "wrong sums"
        assert trials.n == n


def test_logging_of_nccl_does_not_call_for_a_new_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, RIGHT)
    nccl.verdict(LIBRARY, CARDS, True)
    os.environ["NCCL_DEBUG"] = "INFO"
    nccl.verdict(LIBRARY, CARDS, True)
    assert trials.n == 1


def test_force_repeats_a_trial_and_skip_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, Verdict("wrong sums", 1.0, 20.0))
    os.environ["PYGGML_NCCL_TRIAL"] = "force"
    assert [nccl.verdict(LIBRARY, CARDS, True).problem for _ in range(2)] == ["wrong sums"] * 2
    os.environ["PYGGML_NCCL_TRIAL"] = "skip"
    assert nccl.verdict(LIBRARY, CARDS, True).problem is None
    assert trials.n == 2


@pytest.mark.parametrize(("text", "seconds"), [("", 20.0), ("5", 5.0), ("0.5", 0.5), ("0", nccl.NEVER_S)])
def test_the_deadline_of_trials_can_be_set(text: str, seconds: float) -> None:
    os.environ["PYGGML_NCCL_TRIAL_S"] = text
    assert nccl.trial_deadline_s() == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e9", "soon"])
def test_a_deadline_that_is_none_is_refused(text: str) -> None:
    os.environ["PYGGML_NCCL_TRIAL_S"] = text
    with pytest.raises(DeviceError, match=f"PYGGML_NCCL_TRIAL_S={text}; a number of seconds is needed, such as 20; 0 "):
        nccl.trial_deadline_s()


def test_a_trial_without_a_deadline_ends_with_its_child() -> None:
    script = "import time; time.sleep(0.3); print('{\"problem\": null}')"
    verdict = watched(script, deadline_s=nccl.NEVER_S)
    assert verdict.problem is None and not verdict.expired and verdict.seconds >= 0.3


def test_retest_repeats_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, RIGHT)
    for word, n in (("", 1), ("1", 2), ("yes", 3), ("0", 3), ("off", 3)):
        os.environ["PYGGML_RETEST"] = word
        nccl.verdict(LIBRARY, CARDS, True)
        assert trials.n == n


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(DeviceError, match="PYGGML_NCCL_TRIAL=never; there are cached, force, skip"):
        nccl.verdict(LIBRARY, CARDS, True, mode="never")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"verdict": {"problem": null}}'])
def test_a_damaged_cache_is_as_none(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, RIGHT)
    nccl.verdict(LIBRARY, CARDS, True)
    for path in verdicts.cache_dir().glob("*.json"):
        path.write_text(damage)
    assert nccl.verdict(LIBRARY, CARDS, True) == RIGHT
    assert trials.n == 2


def test_a_cache_that_cannot_be_written_costs_only_the_next_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    os.environ["PYGGML_CACHE"] = str(tmp_path / "file")
    trials = Trials(monkeypatch, RIGHT)
    assert [nccl.verdict(LIBRARY, CARDS, True) for _ in range(2)] == [RIGHT] * 2
    assert trials.n == 2


# Settings


def test_peers_off_is_nccls_own_switch_and_multicast_stays_off() -> None:
    assert nccl.environment(False, {})["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_DISABLE" not in nccl.environment(True, {})
    assert nccl.environment(True, {})["NCCL_NVLS_ENABLE"] == "0"


def test_what_the_user_set_is_kept() -> None:
    base = {"NCCL_RUNTIME_CONNECT": "1", "NCCL_ALGO": "Ring", "HOME": "/home/me"}
    assert {**nccl.environment(True, base)}.items() >= base.items()


def test_a_process_uses_nccl_in_one_way() -> None:
    assert nccl.way_obstacle(True) is nccl.way_obstacle(False) is None
    for _ in range(2):
        assert nccl.start(False, lambda: os.environ["NCCL_P2P_DISABLE"]) == "1"
    with pytest.raises(DeviceError, match="has started nccl-shm, .* nccl needs a process of its own"):
        nccl.start(True, lambda: pytest.fail("started"))
    assert nccl.way_obstacle(False) is None and nccl.way_obstacle(True)


@pytest.mark.parametrize("said", [None, "0", "1"])
def test_settings_are_in_the_environment_only_while_nccl_starts(said: str | None) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "1"
    if said is not None:
        os.environ["NCCL_P2P_DISABLE"] = said
    before = dict(os.environ)
    assert nccl.start(False, lambda: dict(os.environ)) == {
        **before, "NCCL_P2P_DISABLE": "1", "NCCL_RUNTIME_CONNECT": "0"
    }  # fmt: skip
    assert dict(os.environ) == before
    with pytest.raises(ZeroDivisionError):
        nccl.start(False, lambda: 1 // 0)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("reason", "is_other_way_left"),
    [
        ("libnccl.so.2: cannot open shared object file", True),
        ("NCCL did not start in 20 s", False),
        ("NCCL did not start: unhandled cuda error", False),
    ],
)
def test_nccl_that_was_not_yet_started_leaves_the_other_way(reason: str, is_other_way_left: bool) -> None:
    def fail() -> None:
        raise DeviceError(reason)

    with pytest.raises(DeviceError, match=reason):
        nccl.start(True, fail)
    assert (nccl.way_obstacle(False) is None) is is_other_way_left
    nccl.start(True, lambda: None)
    with pytest.raises(DeviceError, match=reason):
        nccl.start(True, fail)
    assert nccl.way_obstacle(False)  # which an early failure afterwards does not undo


@pytest.mark.parametrize(("reason", "stay"), [("NCCL did not start in 20 s", True), ("no such library", False)])
def test_settings_stay_where_something_may_still_read_them(reason: str, stay: bool) -> None:
    def fail() -> None:
        raise DeviceError(reason)

    with pytest.raises(DeviceError):
        nccl.start(False, fail)
    assert ("NCCL_P2P_DISABLE" in os.environ) is stay


def test_groups_that_start_at_once_start_nccl_one_after_the_other() -> None:
    before, seen = dict(os.environ), []

    def make() -> None:
        seen.append(os.environ.get("NCCL_P2P_DISABLE"))
        time.sleep(0.01)
        seen.append(os.environ.get("NCCL_P2P_DISABLE"))

    threads = [threading.Thread(target=nccl.start, args=(False, make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == ["1"] * 16 and dict(os.environ) == before


def test_the_native_module_says_so_where_nccl_may_have_read_its_settings() -> None:
    source = (Path(__file__).parent.parent / "pyggml" / "native" / "cuda" / "nccl.cu").read_text()
    start = source[source.index("bool nccl_transport::start") : source.index("void nccl_transport::abort")]
    said = re.findall(r'why\.say\("([^"]*)', start)
    assert "init_all(" in start and len(said) == 2
    assert all(words.startswith(nccl.STARTED_AND_FAILED) for words in said)


# The library


def test_a_named_library_is_the_only_candidate() -> None:
    os.environ["PYGGML_NCCL"] = "/nowhere/libnccl.so.2"
    assert list(nccl.candidates()) == ["/nowhere/libnccl.so.2"]
    assert nccl.find_library() is None


def test_the_loaders_library_comes_before_the_wheels_and_pytorchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []
    for folder in ("nvidia/nccl/lib", "torch/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / nccl.SONAME).touch()
        wanted.append(str(tmp_path / folder / nccl.SONAME))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert list(nccl.candidates()) == [nccl.SONAME, *wanted]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC",
            "580.159.04",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57  Tue", "470.57"),
        ("", "unknown"),
        ("no numbers", "unknown"),
    ],
)
def test_the_driver_says_its_version(text: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(text)
    assert verdicts.driver_version(tmp_path / "version") == version
    assert verdicts.driver_version(tmp_path / "absent") == "unknown"
