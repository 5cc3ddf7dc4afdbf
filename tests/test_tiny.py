"""The tests' own models are what they claim to be, before any engine reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forced import bag_logits, chain_logit, distinct_pieces, write_bag, write_chain, write_forced
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from stored_logits import PROMPT, ROWS, real_columns, real_rows, stored_cases, stored_greedy, stored_real
from tiny import FAMILIES, QUANTS, VARIANTS, shape_of, write_tiny
from tiny_quants import UNIT_STD, Draws, random_tensor
from tiny_vocab import CONTROL_TOKENS, vocabulary

Tiny = Callable[..., Path]
DATA_SHA256 = {
    ("llama", "F32", "bias+rope_freqs"): "30308e17352898a3dcec4063efb974457fe201c9622baa811aba36630a11fddb",
    ("qwen3moe", "mixed", ""): "44f4944b9b42d9560253241037768b594a367803600687fcf914b7cb23d4fc1b",
    ("gemma3", "MXFP4", ""): "3e1f9129d42f3dafb8cf4c094a616637efe00cec4f7125c3224cbb97fb02ef90",
}


def tensors_of(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Type name and bytes of each tensor."""
    return {t.name: (t.tensor_type.name, np.array(t.data)) for t in GGUFReader(path).tensors}


def floats_of(path: Path) -> dict[str, np.ndarray]:
    """Each tensor as float32, in numpy order."""
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


@pytest.mark.parametrize("case", DATA_SHA256, ids="-".join)
def test_tensor_data_is_the_same_on_every_machine(tiny: Tiny, case: tuple[str, str, str]) -> None:
    arch, quant, variant = case
    digest = hashlib.sha256()
    for name, (type_name, data) in tensors_of(tiny(arch, quant=quant, variant=variant)).items():
        digest.update(f"{name} {type_name} ".encode() + data.tobytes())
    assert digest.hexdigest() == DATA_SHA256[case]


def test_the_same_call_writes_the_same_file(tmp_path: Path) -> None:
    first, second = (write_tiny(tmp_path / name, "qwen2", quant="Q4_K") for name in ("a.gguf", "b.gguf"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("quant", UNIT_STD)
def test_random_blocks_have_the_asked_spread(quant: str) -> None:
    blocks = random_tensor(Draws(0, quant), quant, (512, 256), 0.0625)
    weights = dequantize(blocks, GGMLQuantizationType[quant])
    assert weights.shape == (512, 256)
    assert abs(weights.mean()) < 0.15 * 0.0625
    assert 0.75 * 0.0625 < weights.std() < 1.4 * 0.0625


@pytest.mark.parametrize("arch", FAMILIES)
@pytest.mark.parametrize("quant", QUANTS)
def test_matrices_are_of_the_asked_type_and_finite(tiny: Tiny, arch: str, quant: str) -> None:
    path = tiny(arch, quant=quant)
    plain = {"F32"} if quant == "F32" else {quant, "F32"}
    types = {type_name for type_name, _ in tensors_of(path).values()}
    assert types > {"Q6_K", "IQ3_XXS", "Q8_0"} if quant == "mixed" else types == plain
    assert all(np.isfinite(values).all() for values in floats_of(path).values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_leaves_the_tensors_of_equal_shape_alone(tiny: Tiny, variant: str) -> None:
    plain, varied = tensors_of(tiny("llama")), tensors_of(tiny("llama", variant=variant))
    same = [n for n, (_, data) in plain.items() if n in varied and np.array_equal(varied[n][1], data)]
    assert {"blk.0.attn_norm.weight", "blk.1.attn_norm.weight", "output_norm.weight"} <= set(same)


def test_a_copied_head_equals_the_embedding(tiny: Tiny) -> None:
    copied = tensors_of(tiny("llama", variant="tied_copy", quant="Q8_0"))
    tied = tensors_of(tiny("llama", variant="tied", quant="Q8_0"))
    assert "output.weight" not in tied
    assert np.array_equal(copied["output.weight"][1], tied["token_embd.weight"][1])


def test_omitted_tensors_are_not_in_the_file(tiny: Tiny) -> None:
    names = set(tensors_of(tiny("llama", omit=("blk.0.attn_q.weight",))))
    assert set(tensors_of(tiny("llama"))) - names == {"blk.0.attn_q.weight"}


def test_shards_hold_together_what_one_file_holds(tmp_path: Path, tiny: Tiny) -> None:
    first = write_tiny(tmp_path / "tiny.gguf", "llama", n_shards=3)
    shards = sorted(tmp_path.iterdir())
    assert [shard.name for shard in shards] == [f"tiny-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert first == shards[0]
    readers = [GGUFReader(shard) for shard in shards]
    whole = tensors_of(tiny("llama"))
    assert [reader.get_field("split.no").contents() for reader in readers] == [0, 1, 2]  # type: ignore[union-attr]
    assert {r.get_field("split.tensors.count").contents() for r in readers} == {len(whole)}  # type: ignore[union-attr]
    joined = {name: data for shard in shards for name, data in tensors_of(shard).items()}
    assert joined.keys() == whole.keys()
    assert all(np.array_equal(joined[name][1], data) for name, (_, data) in whole.items())


def test_shapes_can_be_overridden(tiny: Tiny) -> None:
    tensors = floats_of(tiny("llama", n_head=6, n_head_kv=2, n_vocab=321, n_ff=768))
    assert tensors["blk.0.attn_q.weight"].shape == (6 * 64, 256)
    assert tensors["blk.0.ffn_down.weight"].shape == (256, 768)
    assert tensors["token_embd.weight"].shape == (321, 256)


def test_every_merge_gives_a_token_of_the_vocabulary() -> None:
    vocab = vocabulary(320)
    assert len(vocab.tokens) == len(set(vocab.tokens)) == 320
    assert len(vocab.merges) > 40
    assert all(
        part in vocab.tokens for merge in vocab.merges for part in (*merge.split(" "), merge.replace(" ", ""))
    )


def test_byte_ids_spell_any_text() -> None:
    text = "Hello, 你好 \x00 👍"
    vocab = vocabulary(320)
    assert vocab.text_of(list(text.encode())) == text.encode()
    assert [vocab.id_of(name) for name in CONTROL_TOKENS] == [256, 257, 258]
    assert vocab.text_of([72, 258, 105, 319]) == b"Hi"


def followed(path: Path, token: int, n: int) -> list[int]:
    """The chain's greedy tokens in numpy: embedding, norm, head (all else is zero)."""
    tensors = floats_of(path)
    ids = []
    for _ in range(n):
        one_hot = tensors["token_embd.weight"][token]
        logits = tensors["output.weight"] @ (one_hot / np.sqrt(np.mean(one_hot**2) + 1e-5))
        token = int(logits.argmax())
        assert logits[token] == pytest.approx(chain_logit(len(one_hot)), rel=1e-6)
        assert np.count_nonzero(logits) == 1
        ids.append(token)
    return ids


def test_the_chain_gives_each_token_its_one_successor(tmp_path: Path) -> None:
    path = write_chain(tmp_path / "chain.gguf", {10: 65, 65: 66, 66: 10}, default=300)
    assert followed(path, 10, 4) == [65, 66, 10, 65]
    assert followed(path, 200, 1) == [300]
    assert chain_logit(512) == pytest.approx(1128.5, abs=0.1)
    assert chain_logit(512, 4.0) == pytest.approx(90.3, abs=0.1)


@pytest.mark.parametrize(
    "answer",
    [
        "Hello, hello! 你好 👍 aaaa\n\nbye",
        [" A", "B", b"\xf0\x9f", b"\x91\x8d", "<|im_start|>"],
        ["x", "y", "x", "y"],
    ],
)
def test_a_forced_answer_comes_after_any_prompt(tmp_path: Path, answer: str | list[str | bytes]) -> None:
    chain = write_forced(tmp_path / "forced.gguf", answer, loops=answer == ["x", "y", "x", "y"])
    assert followed(chain.path, 10, len(chain.ids)) == list(chain.ids)
    expected = answer if isinstance(answer, str) else {" A": " AB👍", "x": "xyxy"}[str(answer[0])]
    assert chain.text == expected


def test_a_piece_with_two_successors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two different next tokens"):
        write_forced(tmp_path / "forced.gguf", ["a", "b", "a", "c"])


@pytest.mark.parametrize("text", ["aaaaaaaa", "abab\n", "\n\n\n\n", "<tool_call>\n{}\n</tool_call>", "é" * 7])
def test_texts_are_cut_into_different_pieces(text: str) -> None:
    pieces = distinct_pieces(text)
    assert "".join(pieces) == text
    assert len(set(pieces)) == len(pieces)
    assert "\n" not in pieces


def test_the_bag_counts_what_is_visible(tmp_path: Path) -> None:
    tensors = floats_of(write_bag(tmp_path / "bag.gguf"))
    tokens = [1, 2, 3, 4]
    one_hots = tensors["token_embd.weight"][tokens]
    normed = one_hots / np.sqrt(np.mean(one_hots**2, axis=1, keepdims=True) + 1e-5)
    mean = (normed @ tensors["blk.0.attn_v.weight"].T).mean(axis=0)
    residual = one_hots[-1] + tensors["blk.0.attn_output.weight"] @ mean
    logits = tensors["output.weight"] @ (residual / np.sqrt(np.mean(residual**2) + 1e-5))
    assert logits == pytest.approx(bag_logits(tokens, 512, 512), abs=1e-5)
    assert logits[tokens] == pytest.approx([4.27, 4.27, 4.27, 21.35], abs=0.01)
    assert np.count_nonzero(logits) == 4


@pytest.mark.parametrize("arch", FAMILIES)
def test_stored_logits_cover_every_type_and_are_sane(arch: str) -> None:
    cases = stored_cases(arch)
    assert len({case.name for case in cases}) == len(cases)
    assert {case.quant for case in cases} == set(QUANTS)
    for case in cases:
        shape, _ = shape_of(arch, case.variant)
        assert case.whole.shape == case.steps.shape == (len(ROWS), shape.n_vocab)
        assert max(PROMPT) < shape.n_vocab
        assert 1 < case.whole.std() < 10, case.name
        assert case.floor < 1e-4, case.name


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_stored_real_logits_agree_with_themselves(model: str) -> None:
    for stored in stored_real(model):
        for rows in (stored.whole, stored.steps):
            assert rows.logits.shape == (len(real_rows(len(stored.tokens))), len(real_columns(49152)))
            assert (np.linalg.norm(rows.logits, axis=1) < rows.norms).all()
            assert rows.best.shape == (len(stored.tokens),)
        exact = stored.weights == "F32" and stored.cache_type == "f32"
        flips = np.mean(stored.whole.best != stored.steps.best)
        assert flips == stored.facts["steps_flips"] <= (0 if exact else 0.12)
        assert stored.facts["steps_nmse"] < (1e-6 if exact else 1e-2)


@pytest.mark.parametrize(("model", "noise"), [("smollm2", 1e-4), ("gemma3", 3e-3)])
def test_stored_greedy_answers_are_complete_and_clear_of_noise(model: str, noise: float) -> None:
    answers = stored_greedy(model)
    assert len({answer.text for answer in answers}) == 20
    assert all(len(answer.ids) == len(answer.gaps) == 64 for answer in answers)
    assert min(answer.gaps.min() for answer in answers) > noise
