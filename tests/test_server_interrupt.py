"""Ctrl-C in a terminal, which comes to all of its processes, while a server with replicas starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import HANG_S


def commands(pid: int) -> str:
    """The command lines of a process's children."""
    found = b""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{child}/cmdline").read_bytes() + b"\n"
    return found.decode()


@pytest.mark.parametrize(
    ("child", "status", "pause_s"),
    [
        ("pyggml.engine.cli.replicas", 130, 0.0), ("pyggml.engine.cli.replicas", 130, 0.3),
        ("pyggml.server.worker", 0, 0.3),
    ],
    ids=["planning is asked for", "replicas are planned", "an engine's process begins"],
)  # fmt: skip
def test_children_that_begin_say_nothing_of_it(
    child: str, status: int, pause_s: float, tiny: Callable[..., Path]
) -> None:
    command = [
        sys.executable, "-m", "pyggml.engine.cli", "serve", str(tiny("llama")), "--dp", "2", "--device", "cpu,cpu",
        "--ctx", "64", "--port", "0",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + HANG_S
            while child not in commands(process.pid):
                assert time.monotonic() < deadline and process.poll() is None, "it did not begin"
                time.sleep(0.005)
            time.sleep(pause_s)
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == status
    assert "Traceback" not in err and "KeyboardInterrupt" not in err, err
