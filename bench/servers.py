"""Both servers on one model, one after the other, and streams.py: tokens a second of several HTTP clients.

Each client's answer comes token by token. The model needs a tokenizer.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from modes import Mode
from peer import PeerError, reference_bin, their_environment

START_S = 300.0
STREAMS = Path(__file__).with_name("streams.py")


def stream_speeds(
    path: str,
    mode: Mode,
    counts: Sequence[int],
    n_prompt: int,
    n_gen: int,
    n_rounds: int,
    *,
    ours_only: bool = False,
) -> Iterator[tuple[str, int, list[float]]]:
    """(`ours` or `theirs`, clients, tokens a second, prompts included in the time): medians of the rounds."""
    n_slots, n_ctx = max(counts), -(-(2 * n_prompt + n_gen) // 256) * 256
    flags = [
        word for name, value in mode.ours.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    ours = [sys.executable, "-m", "pyggml.engine.cli", "serve", path, *flags, "--any-model"]
    ours += ["--parallel", str(n_slots), "--ctx", str(n_ctx)]
    servers = {"ours": (ours, mode.our_env)}
    if mode.their_flags is not None and not ours_only:
        theirs = [str(reference_bin() / "llama-server"), "-m", path, *mode.their_flags, "-fa", "on", "--no-webui"]
        servers["theirs"] = [*theirs, "-np", str(n_slots), "-c", str(n_slots * n_ctx)], mode.their_env
    for side, (server, env) in servers.items():
        with _serving(server, env) as url:
            command = [sys.executable, str(STREAMS), url, "--streams", ",".join(map(str, counts))]
            command += ["-p", str(n_prompt), "-n", str(n_gen), "--rounds", str(n_rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerError(f"streams.py ended with {done.returncode}: {done.stderr[-600:]}")
        for result in json.loads(done.stdout.splitlines()[-1])["results"]:
            yield side, result["n_streams"], [result["tok_per_s"]]


@contextmanager
def _serving(command: list[str], env: Mapping[str, str]) -> Iterator[str]:
    """A server on a free port, ready; ended afterwards. Raises PeerError where it does not come up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=log, stderr=log, env=their_environment(env)
        )
        try:
            _wait(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    log.seek(0)
    raise PeerError(f"{' '.join(map(str, process.args))} did not come up: {log.read()[-600:]}")  # type: ignore[arg-type]
