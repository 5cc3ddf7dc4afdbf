"""Models whose output a test dictates: the chain (each token has one next token) and the bag (context counts).

Both are `llama` files with exact, hand-set weights, so numerics, batch size and backend cannot change what they say.
Their arithmetic is in `chain_logit` and `bag_logits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from tiny import FAMILIES, Shape, write_metadata
from tiny_vocab import CONTROL_TOKENS, IM_END, Vocabulary, vocabulary

HEAD_DIM = 64
NORM_EPS = FAMILIES["llama"][1].norm_eps


@dataclass(frozen=True)
class Chain:
    """A written chain model: after any other token comes `ids[0]`, then the rest in order."""

    path: Path
    vocab: Vocabulary
    ids: tuple[int, ...]
    text: str


def chain_logit(n_embd: int, scale: float = 50.0) -> float:
    """The logit of the token that comes next; all others have 0."""
    return scale / (1 / n_embd + NORM_EPS) ** 0.5


def bag_logits(tokens: Sequence[int], n_embd: int, n_vocab: int, scale: float = 1.0) -> np.ndarray:
    """The bag's logits after `tokens`: a token's share of the context, and 1 more for the last token itself."""
    residual = np.bincount(tokens, minlength=n_embd) / len(tokens)
    residual[tokens[-1]] += 1
    return scale * (residual / np.sqrt(np.mean(residual**2) + NORM_EPS))[:n_vocab]


def padded_width(n_vocab: int) -> int:
    """The smallest embedding that holds a one-hot per token and whole quantisation blocks."""
    return -(-n_vocab // 256) * 256


def write_exact(path: Path, s: Shape, vocab: Vocabulary, weights: Mapping[str, np.ndarray]) -> None:
    """Write a one-hot `llama` model; matrices that are not given are zero, norms are one."""
    writer = GGUFWriter(path, "llama")
    write_metadata(writer, s, FAMILIES["llama"][1], path.stem)
    vocab.write(writer)
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    shapes = {"attn_q": (n_q, s.n_embd), "attn_k": (n_kv, s.n_embd), "attn_v": (n_kv, s.n_embd)}
    shapes |= {"attn_output": (s.n_embd, n_q), "ffn_gate": (s.n_ff, s.n_embd), "ffn_up": (s.n_ff, s.n_embd)}
    shapes |= {"ffn_down": (s.n_embd, s.n_ff)}
    tensors: dict[str, np.ndarray] = {
        "token_embd": np.eye(s.n_vocab, s.n_embd),
        "output": np.zeros((s.n_vocab, s.n_embd)),
    }
    tensors |= {"output_norm": np.ones(s.n_embd)}
    for layer in range(s.n_layer):
        tensors |= {f"blk.{layer}.{name}": np.zeros(shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{name}": np.ones(s.n_embd) for name in ("attn_norm", "ffn_norm")}
    for name, data in (tensors | dict(weights)).items():
        writer.add_tensor(f"{name}.weight", data.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_chain(
    path: str | Path,
    next_token: Mapping[int, int],
    *,
    default: int = IM_END,
    vocab: Vocabulary | None = None,
    scale: float = 50.0,
    n_layer: int = 1,
    n_ctx: int = 4096,
) -> Path:
    """Write a chain model (M1): the greedy token after `t` is `next_token[t]`, or `default` where none is given.

    The right token's logit is `chain_logit(n_embd, scale)` with `n_embd` = padded_width(n_vocab), and 0 is all others';
    `scale` 0 makes the distribution flat. The default vocabulary has 512 tokens: bytes, control tokens, merges.
    """
    path = Path(path)
    vocab = vocab or vocabulary(512)
    n_vocab = len(vocab.tokens)
    s = Shape(n_layer, padded_width(n_vocab), 1, 1, HEAD_DIM, 32, n_vocab, n_ctx)
    output = np.zeros((n_vocab, s.n_embd))
    output[[next_token.get(token, default) for token in range(n_vocab)], range(n_vocab)] = scale
    write_exact(path, s, vocab, {"output": output})
    return path


def write_forced(
    path: str | Path,
    answer: str | Iterable[str | bytes],
    *,
    loops: bool = False,
    n_vocab: int = 512,
    scale: float = 50.0,
    n_layer: int = 1,
    n_ctx: int = 4096,
) -> Chain:
    """Write a chain model that gives `answer` to any prompt and then ends (or starts over, with `loops`).

    `answer` is a text, cut into pieces that are all different, or the pieces themselves, one a token: text, bytes (a
    part of a character, too) or the name of a control token. A piece may come twice only if the same one follows. The
    answer starts after every token that is not in it, so the prompt's last token must not be: the chat template ends
    in a newline, and a text is never cut so that a lone newline is a piece.
    """
    pieces = distinct_pieces(answer) if isinstance(answer, str) else list(answer)
    plain = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    vocab = vocabulary(
        n_vocab, [piece for piece in plain if piece.decode(errors="replace") not in CONTROL_TOKENS]
    )
    ids = [vocab.id_of(piece) for piece in pieces]
    if not loops:
        ids.append(IM_END)
    following: dict[int, int] = {}
    for token, after in zip(ids, [*ids[1:], ids[0]], strict=True):
        if following.setdefault(token, after) != after:
            raise ValueError(f"{vocab.tokens[token]!r} would need two different next tokens")
    write_chain(path, following, default=ids[0], vocab=vocab, scale=scale, n_layer=n_layer, n_ctx=n_ctx)
    return Chain(Path(path), vocab, tuple(ids), vocab.text_of(ids).decode(errors="replace"))


def distinct_pieces(text: str) -> list[str]:
    """Cut a text into pieces that are all different: each grows until it has not been seen before."""
    pieces: list[str] = []
    seen, piece = {"\n"}, ""
    for char in text:
        piece += char
        if piece not in seen:
            pieces.append(piece)
            seen.add(piece)
            piece = ""
    while piece:
        if not pieces:
            raise ValueError(f"{text!r} cannot be cut into different pieces")
        seen.remove(pieces[-1])
        piece = pieces.pop() + piece
        if piece not in seen:
            pieces.append(piece)
            piece = ""
    return pieces


def write_bag(
    path: str | Path, *, vocab: Vocabulary | None = None, scale: float = 1.0, n_layer: int = 1, n_ctx: int = 4096
) -> Path:
    """Write the bag model (M2): logits are `bag_logits` of the visible tokens, 0 for a token that is not visible.

    One layer works, further ones add nothing. No positions: queries and keys are zero, so attention is the plain mean
    of the visible one-hots.
    """
    path = Path(path)
    vocab = vocab or vocabulary(512)
    n_vocab = len(vocab.tokens)
    n_embd = padded_width(n_vocab)
    n_head = n_embd // HEAD_DIM
    s = Shape(n_layer, n_embd, n_head, n_head, HEAD_DIM, 32, n_vocab, n_ctx)
    one_hot_after_norm = (1 / n_embd + NORM_EPS) ** -0.5
    weights = {
        "blk.0.attn_v": np.eye(n_embd),
        "blk.0.attn_output": np.eye(n_embd) / one_hot_after_norm,
        "output": scale * np.eye(n_vocab, n_embd),
    }
    write_exact(path, s, vocab, weights)
    return path
