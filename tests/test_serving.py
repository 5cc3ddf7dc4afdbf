"""Many requests at once: each answers as it would alone, on one device, tensor parallel and a layer split."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced import bag_logits, write_bag, write_chain, write_forced
from resident import resident_bytes
from sent import PATIENCE_S, Sent

from pyggml.engine import LLM, FinishReason, QueueFull, RequestError

MODES: dict[str, dict[str, Any]] = {
    "one device": {"device": "cpu"},
    "tensor parallel": {"device": "cpu,cpu", "tp": 2},
    "layer split": {"device": "cpu,cpu", "layer_split": 2},
}
EXACT = {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = MODES[request.param]
    return options


def mixed_prompts(seed: int, n: int) -> list[list[int]]:
    """Prompts of very different lengths, some of which begin alike."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(3, 300) for _ in range(length)] for length in (0, 70, 150)]
    return [
        rng.choice(beginnings) + [rng.randrange(3, 300) for _ in range(rng.choice((1, 2, 9, 40, 130)))]
        for _ in range(n)
    ]


def wait_until_idle(llm: LLM) -> None:
    for _ in range(600):
        if llm.status().n_open == 0 and llm.status().n_running == 0:
            return
        time.sleep(0.05)
    raise AssertionError("requests were left")


@pytest.mark.parametrize("seed", [1, 2])
def test_answers_of_a_crowd_are_those_of_each_alone(
    seed: int, mode: dict[str, Any], tiny: Callable[..., Path]
) -> None:
    prompts = mixed_prompts(seed, 10)
    path = tiny("llama", quant="F32")
    sampling = {"temperature": 0, "max_tokens": 10, "ignore_eos": True}
    with LLM(path, **mode, **EXACT, ctx=512, parallel=1, prefix_cache=False) as llm:
        alone = [list(llm.generate([ids], **sampling)[0].ids) for ids in prompts]
    with LLM(path, **mode, **EXACT, ctx=512, parallel=4, batch=64) as llm:
        sent = [Sent(llm, ids, **sampling) for ids in prompts]
        sent[3].wait()
        sent += [Sent(llm, ids, **sampling) for ids in prompts]
        assert [s.wait().ids() for s in sent] == alone * 2
        status = llm.status()
        assert status.prefix.n_copies > 0 and status.prefix.n_reused_tokens > 0
        assert status.n_open == 0 and {slot.state for slot in status.slots} == {"free"}


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_rows_taken_from_another_slot_are_the_right_ones(
    cache_type: str, mode: dict[str, Any], tmp_path: Path
) -> None:
    if mode.get("layer_split"):
        pytest.skip("the bag has one layer")
    path = write_bag(tmp_path / "bag.gguf", scale=4.0)
    rng = random.Random(5)
    shared = [rng.randrange(3, 12) for _ in range(90)]
    prompts = [shared + [rng.randrange(low, low + 9) for _ in range(80)] for low in (20, 40, 60, 80, 20, 40)]
    types = {"cache_type_k": cache_type, "cache_type_v": cache_type}
    with LLM(path, **mode, threads=1, ctx=512, parallel=3, **types) as llm:
        sent = [Sent(llm, ids, max_tokens=1, logprobs=20, ignore_eos=True).wait() for ids in prompts]
        n_embd = llm.model.hparams.n_embd
        n_copies = llm.status().prefix.n_copies
    for ids, s in zip(prompts, sent):
        logits = bag_logits(ids, n_embd, 512, 4.0).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        (entry,) = s.end().logprobs or s.deltas[0].logprobs
        for id, logprob in entry.top:
            assert logprob == pytest.approx(expected[id], abs=0.05)
    assert [s.n_cached() for s in sent][1:3] == [90, 90] and n_copies >= 2


@pytest.mark.parametrize("n_shared", [63, 64])
def test_less_than_64_tokens_are_evaluated_again_rather_than_copied(n_shared: int, tmp_path: Path) -> None:
    path = write_chain(tmp_path / "chain.gguf", {})
    shared = list(range(100, 100 + n_shared))
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=2) as llm:
        Sent(llm, [*shared, *range(300, 370)], max_tokens=1).wait()
        second = Sent(llm, [*shared, 20, 21], max_tokens=1).wait()
    assert second.n_cached() == (64 if n_shared == 64 else 0)


def test_the_last_token_of_a_prompt_is_always_evaluated(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "again and the same").path
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=2) as llm:
        ids = llm.tokenize("x" * 75)
        sent = [Sent(llm, ids).wait() for _ in range(5)]
    assert {s.text() for s in sent} == {"again and the same"}
    assert [s.n_cached() for s in sent] == [0, *[len(ids) - 1] * 4]


def test_answers_to_one_prompt_share_its_evaluation(mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    prompt = list(range(3, 43))
    options = {"temperature": 1.0, "seed": 1, "max_tokens": 8, "ignore_eos": True}
    with LLM(tiny("llama", quant="F32"), **mode, **EXACT, ctx=512, parallel=4) as llm:
        first = Sent(llm, prompt, n=3, **options).wait()
        n_evaluated = llm.status().n_prompt_tokens
        again = Sent(llm, prompt, n=3, **options, cache_prompt=False).wait()
        alone = Sent(llm, prompt, **options).wait()
    answers = [first.ids(i) for i in range(3)]
    assert n_evaluated == len(prompt) + 2
    assert len({tuple(ids) for ids in answers}) == 3
    assert [again.ids(i) for i in range(3)] == answers and alone.ids() == answers[0]


def test_identical_prompts_at_once_are_evaluated_once(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "four equal texts").path
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=4, batch=32) as llm:
        ids = llm.tokenize("y" * 200)
        sent = [Sent(llm, ids) for _ in range(4)]
        assert [s.wait().text() for s in sent] == ["four equal texts"] * 4
        assert llm.status().n_prompt_tokens <= len(ids) + 3


def test_without_the_prefix_cache_nothing_is_reused(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "cold").path
    folder = tmp_path / "prefixes"
    with LLM(path, device="cpu", ctx=512, prefix_cache=False, prefix_cache_dir=folder) as llm:
        ids = llm.tokenize("z" * 300)
        sent = [Sent(llm, [*ids, 20 + i]).wait() for i in range(4)]
    assert [s.n_cached() for s in sent] == [0] * 4
    assert not folder.exists()


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[LLM]:
    path = write_forced(tmp_path / "endless.gguf", "abcdefgh", loops=True, n_ctx=16384).path
    with LLM(path, device="cpu", threads=1, ctx=16384, parallel=1, batch=64, max_queued=1) as llm:
        yield llm


def test_a_full_queue_refuses_and_takes_again_later(endless: LLM) -> None:
    running = Sent(endless, "x", max_tokens=16000).wait_for_tokens(1)
    waiting = Sent(endless, "x", max_tokens=3)
    with pytest.raises(QueueFull, match="2 requests are running or queued"):
        Sent(endless, "x", max_tokens=3)
    running.submission.cancel()
    assert running.wait().reason() is FinishReason.ABORT
    assert waiting.wait().reason() is FinishReason.LENGTH
    assert Sent(endless, "x", max_tokens=3).wait().reason() is FinishReason.LENGTH


def test_cancelling_one_in_the_queue_leaves_the_running_one(endless: LLM) -> None:
    running = Sent(endless, "x", max_tokens=200)
    waiting = Sent(endless, "x", max_tokens=200)
    waiting.submission.cancel()
    assert waiting.wait().reason() is FinishReason.ABORT and waiting.ids() == []
    assert running.wait().reason() is FinishReason.LENGTH and len(running.ids()) == 200


def test_cancelling_amid_a_prompt_frees_its_slot(endless: LLM) -> None:
    sent = Sent(endless, [20] * 15000, max_tokens=5)
    while not endless.status().n_tokens_in_flight:
        time.sleep(0.001)
    sent.submission.cancel()
    assert sent.wait().reason() is FinishReason.ABORT and sent.ids() == []
    assert Sent(endless, "x", max_tokens=5).wait().reason() is FinishReason.LENGTH
    assert endless.status().n_prompt_tokens < 15000


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_time_limit_ends_an_answer_wherever_it_is(is_queued: bool, endless: LLM) -> None:
    other = Sent(endless, "x", max_tokens=16000) if is_queued else None
    limited = Sent(endless, "x", max_tokens=16000, time_limit_s=0.3)
    assert limited.wait().reason() is FinishReason.TIME
    assert bool(limited.ids()) is not is_queued
    if other is not None:
        other.submission.cancel()


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_time_limits_that_make_no_sense_are_refused(limit: float, endless: LLM) -> None:
    with pytest.raises(RequestError, match="time limit"):
        Sent(endless, "x", time_limit_s=limit)


@pytest.mark.parametrize("n", [0, -1, 129, True])
def test_numbers_of_answers_that_make_no_sense_are_refused(n: int, endless: LLM) -> None:
    with pytest.raises(RequestError, match="answers"):
        endless.submit("x", endless.model.sampling(), print, n=n)


def test_a_long_prompt_does_not_stop_a_running_answer(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "endless.gguf", "abcdefgh", loops=True, n_ctx=8192).path
    with LLM(path, device="cpu", threads=1, ctx=8192, parallel=2, batch=256) as llm:
        running = Sent(llm, "x", max_tokens=8000).wait_for_tokens(1)
        n_before = llm.status().n_decode_steps
        Sent(llm, [20] * 6000, max_tokens=1).wait()
        status = llm.status()
        running.submission.cancel()
    assert status.n_prefill_steps >= 6000 // 256
    assert status.n_decode_steps - n_before >= status.n_prefill_steps - 2


def test_requests_get_slots_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "in order, please").path
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=2) as llm:
        order: list[int] = []
        ended = threading.Event()

        def take(i: int) -> Callable[[Any], None]:
            def note(delta: Any) -> None:
                if delta.finish_reason is not None:
                    order.append(i)
                    if len(order) == 12:
                        ended.set()

            return note

        for i in range(12):
            llm.submit("x", llm.model.sampling(temperature=0), take(i))
        assert ended.wait(PATIENCE_S)
    assert all(abs(place - i) <= 1 for place, i in enumerate(order))


def test_nothing_is_left_after_many_requests_half_of_which_go_away(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "this is what it says", n_ctx=2048).path
    rng = random.Random(11)
    with LLM(path, device="cpu", threads=1, ctx=1024, parallel=4, batch=64) as llm:
        n_bytes = [placement.n_bytes for placement in llm.plan]
        for _ in range(8):
            sent = []
            for _ in range(25):
                prompt = [rng.choice((20, 21)) for _ in range(rng.randrange(1, 200))] + [22]
                sent.append(Sent(llm, prompt, n=rng.choice((1, 1, 2))))
                if rng.random() < 0.5:
                    rng.choice(sent).submission.cancel()
            for s in sent:
                s.wait()
                whole = [i for i in range(s.submission.n) if s.reason(i) is FinishReason.STOP]
                assert all(s.text(i) == "this is what it says" for i in whole)
        wait_until_idle(llm)
        status = llm.status()
        assert status.n_open == status.n_queued == status.n_tokens_in_flight == 0
        assert {slot.state for slot in status.slots} == {"free"}
        assert llm._scheduler.cache._tree.n_nodes() < 200
        assert [placement.n_bytes for placement in llm.plan] == n_bytes


def test_prompt_logprobs_are_those_of_score(mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    prompt = list(range(5, 75))
    with LLM(tiny("llama", quant="F32"), **mode, **EXACT, ctx=512, batch=32) as llm:
        expected = llm.score(prompt)
        sent = Sent(llm, prompt, n=2, prompt_logprobs=True, logprobs=3, max_tokens=4).wait()
        none = Sent(llm, prompt, prompt_logprobs=True, max_tokens=0).wait()
    told = [d.prompt_logprobs for d in sent.deltas if d.prompt_logprobs is not None]
    assert len(told) == 1 and [entry.id for entry in told[0]] == prompt[1:]
    np.testing.assert_allclose([entry.logprob for entry in told[0]], expected, atol=2e-4)
    assert all(len(entry.top) == 3 for entry in told[0])
    assert none.end().prompt_logprobs is not None and none.ids() == [] and none.reason() is FinishReason.LENGTH


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_vectors_are_the_pooled_hidden_state(pooling: str, mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    prompt = list(range(5, 55))
    with LLM(tiny("llama", quant="F32"), **mode, **EXACT, ctx=512, batch=16) as llm:
        vector = llm.embed([prompt], pooling=pooling)[0]
        logits = llm.score(prompt, logits=True).astype(np.float64)
        head = llm.model.file["output.weight"].numpy().astype(np.float64)
    wanted = {"last": logits[-1], "mean": logits.mean(axis=0), "cls": logits[0]}[pooling]
    found = head @ vector
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert wanted @ found / np.linalg.norm(wanted) / np.linalg.norm(found) == pytest.approx(1, abs=1e-6)


def test_many_texts_are_embedded_in_their_order(tiny: Callable[..., Path]) -> None:
    texts = ["a", "quite another", "a", "third text"]
    with LLM(tiny("llama", quant="F32"), device="cpu", **EXACT, ctx=512) as llm:
        vectors = llm.embed(texts)
        single = llm.embed("third text")
    assert vectors.shape == (4, single.shape[0])
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)
    np.testing.assert_allclose(vectors[3], single, atol=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01


def test_an_unknown_pooling_is_refused(endless: LLM) -> None:
    with pytest.raises(RequestError, match="mean, cls, last"):
        endless.embed("x", pooling="rank")


def test_waiting_costs_no_processor_time(mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama", quant="F32"), **mode, **EXACT, ctx=512) as llm:
        Sent(llm, [5, 6, 7], max_tokens=4, ignore_eos=True).wait()
        time.sleep(0.2)
        start = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - start < 0.05


def test_memory_is_flat_over_many_requests(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "short", n_ctx=1024).path
    rng = random.Random(4)
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=4, batch=64) as llm:

        def ask(n: int) -> None:
            for _ in range(n):
                lengths = [rng.randrange(2, 300) for _ in range(8)]
                sent = [Sent(llm, [rng.choice((20, 21)) for _ in range(k)], max_tokens=6) for k in lengths]
                sent[rng.randrange(8)].submission.cancel()
                for s in sent:
                    s.wait()

        ask(60)  # all shapes were seen and all slots filled
        before = resident_bytes()
        ask(60)
        assert resident_bytes() - before < 16 << 20
        assert threading.active_count() < 20


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 255, 256, 257])
def test_lengths_about_a_chunk_or_a_window_answer_right_cold_and_warm(n: int, forced_answer: LLM) -> None:
    prompt = [20] * n
    cold = Sent(forced_answer, prompt, cache_prompt=False).wait()
    warm = Sent(forced_answer, prompt).wait()
    assert cold.text() == warm.text() == "the very answer"
    assert (cold.n_cached(), warm.n_cached()) == (0, n - 1)


@pytest.fixture(scope="module")
def forced_answer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_forced(tmp_path_factory.mktemp("forced") / "m.gguf", "the very answer").path
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=1, batch=32) as llm:
        yield llm


def test_a_prompt_that_differs_in_its_first_token_takes_nothing(forced_answer: LLM) -> None:
    Sent(forced_answer, [20] * 100).wait()
    assert Sent(forced_answer, [21] + [20] * 99).wait().n_cached() == 0


def test_twenty_conversations_on_two_slots_never_mix(mode: dict[str, Any], tmp_path: Path) -> None:
    if mode.get("layer_split"):
        pytest.skip("the bag has one layer")
    path = write_bag(tmp_path / "bag.gguf", scale=4.0)
    rng = random.Random(2)
    with LLM(path, **mode, threads=1, ctx=256, parallel=2, batch=32) as llm:
        sent = []
        for i in range(20):
            low = 21 if i % 2 else 41
            prompt = [rng.randrange(low, low + 9) for _ in range(rng.randrange(1, 120))]
            sent.append((low, Sent(llm, prompt, max_tokens=8, logprobs=20, ignore_eos=True)))
        for low, s in sent:
            assert all(low <= id < low + 9 for id in s.wait().ids())


def test_nothing_of_an_earlier_request_carries_over(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "one two three", scale=4.0).path
    with LLM(path, device="cpu", threads=1, ctx=512, parallel=1) as llm:
        plain = Sent(llm, "x").wait()
        biased = Sent(llm, "x", logit_bias={plain.ids()[0]: -100}, max_tokens=1).wait()
        stopped = Sent(llm, "x", stop="two").wait()
        again = Sent(llm, "x").wait()
    assert biased.ids() != plain.ids()[:1] and stopped.text() == "one "
    assert again.text() == plain.text() == "one two three"
