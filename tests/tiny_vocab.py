"""A small byte-level BPE vocabulary in GGUF's words, for models whose text path a test wants to run.

Ids: 0-255 are the bytes, 256-258 the control tokens, then the pieces that the caller asks for, then merges, then
unused fillers. Prompts and answers in any language work; the chat template is ChatML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gguf import GGUFWriter, TokenType

ENDOFTEXT, IM_START, IM_END = 256, 257, 258
N_FIXED = 259
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Each line may use the bytes and the results of the lines before it. "_" stands for a leading space.
MERGES = """
_ t|h e|i n|_ a|r e|_t he|o n|e r|_ s|a t|o u|e n|i s|i t|o r|_ o|e s|l l|_ w|a n|n d|_a nd|in g|_ b|_ c|_o f
_t o|a r|_ p|_ i|v e|s t|l e|_ f|o w|_i s|_w h|e d|_ h|he l|hel l|hell o|w or|l d|wor ld|1 2|0 0
"""


def byte_chars() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    chars, n_other = [], 0
    for byte in range(256):
        chars.append(chr(byte if byte in printable else 256 + n_other))
        n_other += byte not in printable
    return chars


BYTE_CHARS = byte_chars()


def spelled(piece: bytes) -> str:
    """A piece of text as the vocabulary spells it."""
    return "".join(BYTE_CHARS[byte] for byte in piece)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, their types and merges, as a GGUF file lists them."""

    tokens: list[str] = field(repr=False)
    types: list[int] = field(repr=False)
    merges: list[str] = field(repr=False)
    pre: str = "gpt-2"

    def id_of(self, piece: str | bytes) -> int:
        """The id of one token, given as text, as bytes, or as a control token's name."""
        if isinstance(piece, str):
            if piece in CONTROL_TOKENS:
                return ENDOFTEXT + CONTROL_TOKENS.index(piece)
            piece = piece.encode()
        return self.tokens.index(spelled(piece))

    def text_of(self, ids: Sequence[int]) -> bytes:
        """The bytes that the ids stand for; control tokens and fillers stand for nothing."""
        byte_of = {char: byte for byte, char in enumerate(BYTE_CHARS)}
        shown = (self.tokens[i] for i in ids if self.types[i] == TokenType.NORMAL)
        return bytes(byte_of[char] for token in shown for char in token)

    def write(self, writer: GGUFWriter) -> None:
        """Add the tokenizer's keys to a GGUF file."""
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_bos_token_id(ENDOFTEXT)
        writer.add_eos_token_id(IM_END)
        writer.add_add_bos_token(False)
        writer.add_chat_template(CHATML)


def vocabulary(
    n_vocab: int, pieces: Sequence[bytes] = (), *, has_merges: bool = True, pre: str = "gpt-2"
) -> Vocabulary:
    """A vocabulary of exactly `n_vocab` tokens that holds the bytes, the control tokens and `pieces`."""
    tokens = [*BYTE_CHARS, *CONTROL_TOKENS]
    tokens += [token for token in dict.fromkeys(map(spelled, pieces)) if token not in tokens]
    if n_vocab < len(tokens):
        raise ValueError(f"n_vocab = {n_vocab} is too small for {len(tokens)} tokens")
    merges = []
    for line in (
        MERGES.replace("_", BYTE_CHARS[0x20]).strip().replace("\n", "|").split("|") if has_merges else ()
    ):
        merged = line.replace(" ", "")
        if merged not in tokens and len(tokens) < n_vocab:
            tokens.append(merged)
            merges.append(line)
    types = [int(TokenType.CONTROL if token in CONTROL_TOKENS else TokenType.NORMAL) for token in tokens]
    n_fillers = n_vocab - len(tokens)
    tokens += [f"<filler_{i}>" for i in range(n_fillers)]
    types += [int(TokenType.UNUSED)] * n_fillers
    return Vocabulary(tokens, types, merges, pre)
