"""Files of log-probabilities: what is written is read back, and what is damaged is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from pyggml.engine import ConfigError, GenerationError
from pyggml.engine.logprob_file import LogprobFile, LogprobWriter, coded, log_totals
from pyggml.engine.text_windows import TextWindows

N_CTX = 9
RNG = np.random.default_rng(0)


def windows(n: int, n_vocab: int, n_ctx: int = N_CTX) -> TextWindows:
    return TextWindows(RNG.integers(0, n_vocab, (n, n_ctx), np.int32), None)


def written(path: Path, n_vocab: int, n_windows: int = 2) -> tuple[TextWindows, list[np.ndarray]]:
    """Random logits of some windows, in a file."""
    text = windows(n_windows, n_vocab)
    logits = [RNG.normal(0, 8, (text.n_counted, n_vocab)).astype(np.float32) for _ in range(n_windows)]
    with LogprobWriter(path, text, n_vocab) as writer:
        for rows in logits:
            writer.write(rows[:1])
            writer.write(rows[1:])
    return text, logits


@pytest.mark.parametrize("n_vocab", [1, 2, 7, 320, 300_001])
def test_what_is_written_is_read_back(n_vocab: int, tmp_path: Path) -> None:
    text, logits = written(tmp_path / "x.logits", n_vocab)
    file = LogprobFile(tmp_path / "x.logits")
    assert (file.n_ctx, file.n_vocab) == (N_CTX, n_vocab)
    assert np.array_equal(file.windows(None).tokens, text.tokens)
    for window, expected in enumerate(logits):
        rows, exact = file.rows(window), expected - log_totals(expected)[:, None]
        for r in range(len(expected)):
            kept = np.flatnonzero(expected[r] > expected[r].max() - 16)
            stored = rows.logprobs(r, np.arange(n_vocab))
            assert np.abs(stored[kept] - exact[r, kept]).max() <= rows.scale[r] / 2 + 1e-5
            assert stored.min() >= exact[r].max() - 16.001
    assert [path.name for path in tmp_path.iterdir()] == ["x.logits"]


def test_the_layout_is_llama_cpps(tmp_path: Path) -> None:
    text = TextWindows(np.arange(4, dtype=np.int32)[None], None)
    with LogprobWriter(tmp_path / "x", text, 5) as writer:
        writer.write(np.array([[0, 1, 2, 3, -99]], np.float32))
    content = (tmp_path / "x").read_bytes()
    assert content[:20] == b"_logits_" + struct.pack("<Iii", 4, 5, 1)
    assert struct.unpack_from("<4i", content, 20) == (0, 1, 2, 3)
    scale, least, *codes = struct.unpack_from("<ff6H", content, 36)
    assert len(content) == 36 + 20
    assert scale == np.float32(16 / 65535)
    assert least == pytest.approx(-16 - np.log(1 + np.exp(-1) + np.exp(-2) + np.exp(-3)), abs=1e-6)
    assert codes == [53247, 57343, 61439, 65535, 0, 0]


@pytest.mark.parametrize("logprob", [-1.0, -5.0, -16.0, -40.0])
def test_tokens_above_a_log_probability_are_found(logprob: float) -> None:
    logits = RNG.normal(0, 8, (4, 300)).astype(np.float32)
    logits[3] = 1.5  # all alike
    rows = coded(logits, log_totals(logits))
    for r in range(4):
        right = np.flatnonzero(rows.codes[r] * float(rows.scale[r]) + float(rows.least[r]) > logprob)
        assert np.array_equal(rows.above(r, logprob), right)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    text = windows(1, 7)
    with pytest.raises(GenerationError), LogprobWriter(tmp_path / "x", text, 7) as writer:
        writer.write(np.full((text.n_counted, 7), np.nan, np.float32))
    assert list(tmp_path.iterdir()) == []


def changed(content: bytes, how: str) -> bytes:
    """A sound file made unsound."""
    if how == "empty":
        return b""
    if how == "other magic":
        return b"_lobster" + content[8:]
    if how == "short header":
        return content[:15]
    if how == "one byte less":
        return content[:-1]
    if how == "one byte more":
        return content + b"\0"
    if how == "a window less":
        return content[: len(content) // 2]
    at, value = {
        "no window": (16, 0), "negative vocabulary": (12, -7), "huge": (16, 2**31 - 1), "short windows": (8, 3),
        "token outside": (20, 7), "negative token": (20, -1),
    }[how]  # fmt: skip
    return content[:at] + struct.pack("<i", value) + content[at + 4 :]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("empty", "is no file of log-probabilities"),
        ("other magic", "does not begin with _logits_"),
        ("short header", "is no file of log-probabilities"),
        ("one byte less", "it was cut off"),
        ("a window less", "it was cut off"),
        ("one byte more", "something behind its end"),
        ("no window", "0 windows of 9 tokens of a vocabulary of 7 cannot be"),
        ("negative vocabulary", "a vocabulary of -7 cannot be"),
        ("huge", "it was cut off"),
        ("short windows", "windows of 3 tokens"),
        ("token outside", "token ids outside of its vocabulary of 7"),
        ("negative token", "token ids outside"),
    ],
)
def test_a_damaged_file_is_refused(how: str, expected: str, tmp_path: Path) -> None:
    written(tmp_path / "x", 7)
    (tmp_path / "y").write_bytes(changed((tmp_path / "x").read_bytes(), how))
    with pytest.raises(ConfigError, match=expected):
        LogprobFile(tmp_path / "y")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_numbers_that_cannot_be_are_refused(value: float, tmp_path: Path) -> None:
    text, _ = written(tmp_path / "x", 7)
    content = bytearray((tmp_path / "x").read_bytes())
    struct.pack_into("<f", content, 20 + 4 * text.tokens.size, value)
    (tmp_path / "x").write_bytes(content)
    file = LogprobFile(tmp_path / "x")
    with pytest.raises(ConfigError, match="window 0 has log-probabilities that are no numbers"):
        file.rows(0)
    file.rows(1)
