"""llama.cpp as the judge: compiles `llama_logits.cpp` against the reference's libraries and runs it and the tools.

The program is kept in the cache under a name made of its source and the libraries' folder. Used by the scripts
beside this file and by tests that compare at run time; it loads nothing into this process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import places
from tiny_quants import Draws

SOURCE = Path(__file__).with_name("llama_logits.cpp")


class Reference:
    """The reference's programs for one build."""

    def __init__(self, archive: Path, bin_folder: Path) -> None:
        self.archive = archive
        self.bin = bin_folder
        self._program: Path | None = None

    @classmethod
    def found(cls) -> Reference:
        """The reference on this machine. Raises: places.Missing."""
        return cls(places.archive_folder(), places.reference_folder())

    def program(self) -> Path:
        """`llama_logits`, compiled if it has not been."""
        if self._program is None:
            stamp = hashlib.sha256(SOURCE.read_bytes() + str(self.bin).encode()).hexdigest()[:16]
            target = places.cache_folder() / "reference" / f"llama_logits-{stamp}"
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_suffix(f".{os.getpid()}")
                includes = [f"-I{self.archive / folder / 'include'}" for folder in ("", "ggml")]
                libraries = [f"-L{self.bin}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{self.bin}"]
                compiler = os.environ.get("CXX", "g++")
                subprocess.run(
                    [compiler, "-std=c++17", "-O2", str(SOURCE), *includes, *libraries, "-o", str(partial)],
                    check=True,
                )
                os.replace(partial, target)
            self._program = target
        return self._program

    def logits(self, model: Path, tokens: Sequence[int], **options: object) -> np.ndarray:
        """Logits of one sequence, float32 [rows, n_vocab]; options are the program's (`chunk=1`, `ctk="q8_0"`)."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "logits.f32")
            self._run(model, out, options, map(str, tokens))
            rows = options.get("rows")
            n_rows = len(str(rows).split(",")) if rows else len(tokens)
            return np.fromfile(out, np.float32).reshape(n_rows, -1)

    def greedy(
        self, model: Path, seqs: Sequence[Sequence[int]], n: int, **options: object
    ) -> tuple[np.ndarray, np.ndarray]:
        """Greedy continuations of each sequence alone: ids int32 and top-2 gaps float32, each [sequences, n]."""
        with tempfile.TemporaryDirectory() as folder:
            out, seqs_file = Path(folder, "greedy.txt"), Path(folder, "seqs.txt")
            seqs_file.write_text("".join(" ".join(map(str, seq)) + "\n" for seq in seqs))
            self._run(model, out, {"greedy": n, "seqs": seqs_file, **options}, ())
            pairs = [[pair.split(":") for pair in line.split()] for line in out.read_text().splitlines()]
        ids = np.array([[int(token) for token, _ in line] for line in pairs], np.int32)
        gaps = np.array([[float(gap) for _, gap in line] for line in pairs], np.float32)
        return ids, gaps

    def tokenize(self, model: Path, text: str, *, add_bos: bool) -> list[int]:
        """llama-tokenize's ids of a text, control tokens parsed."""
        command = [str(self.bin / "llama-tokenize"), "-m", str(model), "--ids", "--log-disable", "--stdin"]
        asked = subprocess.run(
            command + ([] if add_bos else ["--no-bos"]),
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(token) for token in asked.stdout.strip().strip("[]").split(",") if token.strip()]

    def convert(self, model: Path, target: Path, quant: str) -> None:
        """Write a copy of a model in another type, dequantising what is quantised."""
        command = [str(self.bin / "llama-quantize"), "--allow-requantize", "--output-tensor-type", quant]
        command += ["--token-embedding-type", quant, str(model), str(target), quant, "2"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _run(self, model: Path, out: Path, options: dict[str, object], tokens: Iterable[str]) -> None:
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [str(self.program()), str(model), str(out), *flags, *tokens]
        # Threads that wait asleep: on a busy machine spinning ones take the time of those they wait for.
        subprocess.run(command, check=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


def nmse(measured: np.ndarray, right: np.ndarray) -> float:
    """Squared error over squared size of what is right."""
    right = right.astype(np.float64)
    return float(np.square(measured - right).sum() / np.square(right).sum())


def nudge(model: Path, target: Path) -> None:
    """Copy a model with every norm weight moved by one ulp, up or down: what it changes is noise, not meaning."""
    shutil.copyfile(model, target)
    for tensor in GGUFReader(target, "r+").tensors:
        if tensor.name.endswith("norm.weight"):
            ups = (Draws(0, tensor.name).raw(tensor.data.size) & 1).reshape(tensor.data.shape)
            towards = np.where(ups, np.float32(np.inf), np.float32(-np.inf))
            tensor.data[:] = np.nextafter(tensor.data, towards)
