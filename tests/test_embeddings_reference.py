"""Vectors of texts beside llama.cpp's server, for each pooling."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from pyggml.engine import LLM

TEXTS = ["The capital of France is Paris.", "ggml", "Ein längerer Text mit Umlauten: schön, größer, über.\n\tx = 5"]


def theirs(reference_bin: Path, model: Path, pooling: str) -> np.ndarray:
    """The server's vectors of TEXTS."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [str(reference_bin / "llama-server"), "-m", str(model), "--port", url.rpartition(":")[2]]
    command += ["--embeddings", "--pooling", pooling, "-c", "512", "-t", "1", "-ngl", "0", "--no-webui"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, "llama-server ended"
                time.sleep(0.1)
        asked = urllib.request.Request(f"{url}/v1/embeddings", json.dumps({"input": TEXTS}).encode())
        with urllib.request.urlopen(asked, timeout=100) as response:
            return np.array([entry["embedding"] for entry in json.load(response)["data"]])
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_are_those_of_llama_server(pooling: str, reference_bin: Path, smollm2: Path) -> None:
    expected = theirs(reference_bin, smollm2, pooling)
    with LLM(smollm2, device="cpu", threads=1, ctx=512) as llm:
        found = llm.embed(TEXTS, pooling=pooling)
    assert found.shape == expected.shape
    assert np.einsum("ij,ij->i", found, expected) == pytest.approx(np.ones(len(TEXTS)), abs=1e-4)
