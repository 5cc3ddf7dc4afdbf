"""NCCL: where the library is, and whether it works here, found out in a child process that may hang and be killed.

The verdict is kept in the user's cache folder, by start of the machine, driver, NCCL, cards and settings. NCCL reads
its settings from the environment once a process, so a process uses it with peer access or without, never both.
`python -m pyggml.nccl --trial --library PATH --cards BUS_ID,BUS_ID` is the child.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ._ffi import ffi
from .cuda_module import cuda_api, why, words
from .errors import DeviceError
from .verdicts import boot_id, driver_version, is_retest_wanted, keep_verdict, read_verdict

LOG = logging.getLogger("pyggml.transport")
SONAME = "libnccl.so.2"
TRIAL_DEADLINE_S = 20.0
NEVER_S = 1e8  # three years, which C++'s clocks can add to now
TRIAL_MODES = ("cached", "force", "skip")
# Kept unless the user says otherwise: everything connects at the start, and no multicast through the switches.
DEFAULTS = {"NCCL_RUNTIME_CONNECT": "0", "NCCL_NVLS_ENABLE": "0"}
# How native/cuda/nccl.cu begins its reasons from the moment on at which NCCL may have read its settings.
STARTED_AND_FAILED = "NCCL did not start"
_used_with_peers: bool | None = None
_STARTING = threading.Lock()  # groups may start at once; the environment is one


@dataclass(frozen=True)
class Library:
    """An NCCL library: what dlopen takes, and its version as NCCL counts it (22703 is 2.27.3)."""

    path: str
    version: int


@dataclass(frozen=True)
class Verdict:
    """The outcome of a trial; `problem` is None where all sums were right, `expired` after the deadline.

    `when` it was made: now, earlier, or never.
    """

    problem: str | None
    seconds: float
    deadline_s: float
    expired: bool = False
    when: str = "now"


def candidates() -> Iterator[str]:
    """What to open, best first: PYGGML_NCCL, what the loader knows or has loaded, the wheel's, PyTorch's."""
    if named := os.environ.get("PYGGML_NCCL"):
        yield named
        return
    yield SONAME
    for place in dict.fromkeys(path for path in sys.path if path):
        for folder in ("nvidia/nccl/lib", "torch/lib"):
            library = Path(place) / folder / SONAME
            if library.exists():
                yield str(library)


def find_library() -> Library | None:
    """The first NCCL that can be opened."""
    for path in candidates():
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
        except OSError:
            continue
        version = ctypes.c_int(0)
        if library.ncclGetVersion(ctypes.byref(version)) == 0:
            return Library(_opened_path(path), version.value)
    return None


def _opened_path(path: str) -> str:
    # A child process must open the same file, also where only another package's loading made the bare name work.
    if os.sep in path:
        return path
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next((line[line.index("/") :] for line in maps if "/libnccl.so" in line), path)


def environment(peers: bool, base: Mapping[str, str]) -> dict[str, str]:
    """The base environment with NCCL's settings for use with or without peer access."""
    chosen = {**DEFAULTS, **base}
    if not peers:
        chosen["NCCL_P2P_DISABLE"] = "1"
    return chosen


def way_obstacle(peers: bool) -> str | None:
    """Why this process cannot use NCCL with or without peer access; None if it can."""
    if _used_with_peers in (None, peers):
        return None
    used, wanted = ("nccl-shm", "nccl") if peers else ("nccl", "nccl-shm")
    return (
        f"this process has started {used}, and NCCL reads its settings once a process; "
        f"{wanted} needs a process of its own"
    )


def start(peers: bool, make: Callable[[], Any]) -> Any:
    """What make() gives, which starts NCCL; the settings are in this process's environment for that time only.

    Raises DeviceError when the process uses NCCL already in the other way, and what make() raises.
    """
    global _used_with_peers
    with _STARTING:
        if obstacle := way_obstacle(peers):
            raise DeviceError(obstacle)
        before = {name: os.environ.get(name) for name in environment(peers, {})}
        os.environ.update(environment(peers, os.environ))
        was, _used_with_peers = _used_with_peers, peers
        try:
            made = make()
        except DeviceError as error:
            if not str(error).startswith(STARTED_AND_FAILED):
                _used_with_peers = was
                _restore(before)
            raise  # else what hangs in NCCL may still read its settings, which stay
        except BaseException:
            _restore(before)
            raise
        # NCCL keeps what it read; children and later groups are to see the user's settings.
        _restore(before)
        return made


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def trial_deadline_s() -> float:
    """Seconds until a trial counts as hanging: PYGGML_NCCL_TRIAL_S (0: NEVER_S), else TRIAL_DEADLINE_S.

    Raises DeviceError for what is no number of 0 or more.
    """
    text = os.environ.get("PYGGML_NCCL_TRIAL_S") or str(TRIAL_DEADLINE_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= NEVER_S:
        raise DeviceError(f"PYGGML_NCCL_TRIAL_S={text}; a number of seconds is needed, such as 20; 0 for no deadline")
    return seconds or NEVER_S


def run_trial(
    library: Library, bus_ids: Sequence[str], peers: bool, deadline_s: float = TRIAL_DEADLINE_S
) -> Verdict:
    """Let a child process sum over these cards, and kill it at the deadline."""
    command = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-m", "pyggml.nccl", "--trial"]
    command += ["--library", library.path, "--cards", ",".join(bus_ids), "--deadline", str(deadline_s)]
    return watch(command, environment(peers, os.environ), deadline_s)


def watch(command: Sequence[str], env: Mapping[str, str], deadline_s: float) -> Verdict:
    """Run a trial's command, which prints a JSON object with "problem" as its last such line."""
    path = os.pathsep.join(place for place in sys.path if place)
    start = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command,
            env={**env, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            problem = f"a sum over the cards did not end within {deadline_s:g} s"
            return Verdict(problem, deadline_s, deadline_s, expired=True)
        except BaseException:
            _kill(child)
            raise
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
    seconds = time.monotonic() - start
    for line in reversed(lines):
        if line.startswith('{"problem"'):
            return Verdict(json.loads(line)["problem"], seconds, deadline_s)
    ending = f"by signal {-status}" if status < 0 else f"with status {status}"
    return Verdict(
        f"the trial ended {ending}: {lines[-1] if lines else 'it said nothing'}", seconds, deadline_s
    )


def _kill(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        LOG.warning("process %d is stuck in the driver and does not die", child.pid)


def verdict(
    library: Library,
    cards: Mapping[str, str],
    peers: bool,
    *,
    deadline_s: float = TRIAL_DEADLINE_S,
    mode: str | None = None,
) -> Verdict:
    """The cached verdict on these cards (uuid by bus id), else that of a new trial.

    `mode` (PYGGML_NCCL_TRIAL): "cached", "force" repeats the trial as PYGGML_RETEST does, "skip" trusts NCCL.
    Raises DeviceError for another mode.
    """
    mode = mode or os.environ.get("PYGGML_NCCL_TRIAL") or ("force" if is_retest_wanted() else "cached")
    if mode not in TRIAL_MODES:
        raise DeviceError(f"PYGGML_NCCL_TRIAL={mode}; there are {', '.join(TRIAL_MODES)}")
    if mode == "skip":
        return Verdict(None, 0.0, deadline_s, when="never")
    facts = _facts(library, cards, peers)
    known = _known(facts) if mode == "cached" else None
    # More patience than last time deserves another try.
    if known and not (known.expired and deadline_s > known.deadline_s):
        LOG.info("NCCL was tried on these cards before: %s", known.problem or "all sums were right")
        return replace(known, when="earlier")
    LOG.info(
        "trying NCCL %d on %d cards in a process of its own, %s",
        library.version,
        len(cards),
        f"up to {deadline_s:g} s" if deadline_s < NEVER_S else "without a deadline",
    )
    found = run_trial(library, list(cards), peers, deadline_s)
    keep_verdict(facts, asdict(found))
    return found


def _facts(library: Library, cards: Mapping[str, str], peers: bool) -> dict[str, object]:
    settings = {k: v for k, v in environment(peers, os.environ).items() if k.startswith("NCCL_")}
    return {
        "boot": boot_id(),
        "driver": driver_version(),
        "library": library.path,
        "nccl": library.version,
        "cards": list(cards.values()),
        "settings": {k: v for k, v in settings.items() if not k.startswith("NCCL_DEBUG")},
    }


def _known(facts: Mapping[str, object]) -> Verdict | None:
    kept = read_verdict(facts)
    try:
        return None if kept is None else Verdict(**kept)
    except TypeError:
        return None


def _trial_problem(library: str, bus_ids: Sequence[str], deadline_s: float) -> str | None:
    api, reason = cuda_api(), why()
    if api is None:
        return "the CUDA transports are not built"
    cards = [api.find_card(bus_id.encode(), ffi.new("char[33]"), reason, len(reason)) for bus_id in bus_ids]
    if min(cards) < 0 or not api.nccl_trial(
        library.encode(), len(cards), cards, deadline_s, reason, len(reason)
    ):
        return words(reason)
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the trial in this process and print {"problem": ...}."""
    parser = argparse.ArgumentParser(prog="python -m pyggml.nccl", description=main.__doc__)
    parser.add_argument("--trial", action="store_true", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--cards", required=True, help="PCI addresses")
    parser.add_argument("--deadline", type=float, default=TRIAL_DEADLINE_S)
    args = parser.parse_args(arguments)
    problem = _trial_problem(args.library, args.cards.split(","), args.deadline)
    print(json.dumps({"problem": problem}), flush=True)
    # NCCL's and CUDA's own clean-up may hang after a failure.
    os._exit(0 if problem is None else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
