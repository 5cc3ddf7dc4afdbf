"""What streams, whole answers, stop strings, seeds and log-probabilities say: the same everywhere, and valid JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from forced import write_chain, write_forced
from server_process import ServerProcess

COMPLETIONS = "/v1/completions"
THUMB = [b"\xf0\x9f", b"\x91", b"\x8d"]
Serve = Callable[[Sequence[str | bytes]], ServerProcess]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A server of a model that answers in these pieces; made once for each answer."""
    folder = tmp_path_factory.mktemp("serve")
    servers: dict[tuple[str | bytes, ...], ServerProcess] = {}

    def server_of(pieces: Sequence[str | bytes]) -> ServerProcess:
        key = tuple(pieces)
        if key not in servers:
            path = write_forced(folder / f"{len(servers)}.gguf", pieces).path
            servers[key] = ServerProcess(path, "--ctx", 256, "--parallel", 2, "--threads", 1)
        return servers[key]

    yield server_of
    for server in servers.values():
        server.__exit__()


def whole(server: ServerProcess, **fields: Any) -> tuple[str, str]:
    (choice,) = server.chat("QQ", **fields).json["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def streamed(server: ServerProcess, **fields: Any) -> tuple[str, str]:
    choices = [c for event in server.chat("QQ", stream=True, **fields).events for c in event["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices), choices[-1]["finish_reason"]


CHARACTERS = {
    "a character in three tokens": (THUMB, {}, "👍"),
    "within text": (["a", *THUMB, "b"], {}, "a👍b"),
    "cut within a character": (["a", *THUMB], {"max_tokens": 3}, "a\ufffd"),
    "broken in the middle": ([b"\xf0\x9f", "a"], {}, "\ufffda"),
    "quotes and separators": (['"', "\n\n", "\u2028", "\\"], {}, '"\n\n\u2028\\'),
}


@pytest.mark.parametrize("name", CHARACTERS)
def test_characters_come_whole(serve: Serve, name: str) -> None:
    pieces, fields, expected = CHARACTERS[name]
    server = serve(pieces)
    assert whole(server, **fields)[0] == streamed(server, **fields)[0] == expected


def test_no_chunk_has_half_a_character(serve: Serve) -> None:
    body = serve(["a", *THUMB, "b"]).chat("QQ", stream=True).body
    assert "\ufffd" not in body.decode() and b"\\ufffd" not in body


def test_tokens_are_counted_and_not_chunks(serve: Serve) -> None:
    assert serve(THUMB).chat("QQ", ignore_eos=True, max_tokens=3).json["usage"]["completion_tokens"] == 3


def test_logprobs_hold_the_bytes_of_each_token(serve: Serve) -> None:
    (choice,) = serve(THUMB).chat("QQ", logprobs=True, max_tokens=3).json["choices"]
    assert [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]] == THUMB


LETTERS = ["A", " B", " C", " O", " P", " Q", " R"]
STOPS = {
    "over several tokens": (LETTERS, [" O P Q"], "A B C", "stop"),
    "begun and not finished": (LETTERS[:5], [" O P Q"], "A B C O P", "stop"),
    "at the end of a token": (["A", "?\n"], ["\n"], "A?", "stop"),
    "the earliest start wins": (["x", "a", "b"], ["b", "ab"], "x", "stop"),
    "a plain text": (LETTERS, " C", "A B", "stop"),
    "a character in three tokens": (["a", *THUMB, "b"], ["👍"], "a", "stop"),
    "over equal beginnings": (["a", "aa", "b"], ["ab"], "aa", "stop"),
    "in the prompt only": (LETTERS, ["QQ"], "A B C O P Q R", "stop"),
    "none": (LETTERS, [], "A B C O P Q R", "stop"),
    "null": (LETTERS, None, "A B C O P Q R", "stop"),
}


@pytest.mark.parametrize("name", STOPS)
def test_stop_strings_end_answers_and_are_not_sent(serve: Serve, name: str) -> None:
    pieces, stop, expected, reason = STOPS[name]
    server = serve(pieces)
    assert whole(server, stop=stop) == streamed(server, stop=stop) == (expected, reason)


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model for which all tokens are alike."""
    path = write_chain(tmp_path_factory.mktemp("serve") / "flat.gguf", {}, scale=0)
    with ServerProcess(path, "--ctx", 256, "--threads", 1) as server:
        yield server


def texts(server: ServerProcess, **fields: Any) -> list[str]:
    body = {"prompt": "QQ", "max_tokens": 16, "temperature": 0.8, "top_k": 0, "ignore_eos": True} | fields
    choices = server.post(COMPLETIONS, body).json["choices"]
    assert [c["index"] for c in choices] == list(range(len(choices)))
    return [c["text"] for c in choices]


def test_a_seed_gives_the_same_answer_again(flat: ServerProcess) -> None:
    assert texts(flat, seed=42) == texts(flat, seed=42) != texts(flat, seed=43)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_any_seed_is_one(flat: ServerProcess, seed: int) -> None:
    assert texts(flat, seed=seed) == texts(flat, seed=seed)


@pytest.mark.parametrize("seed", [None, -1])
def test_no_seed_gives_another_answer_each_time(flat: ServerProcess, seed: int | None) -> None:
    assert texts(flat, seed=seed) != texts(flat, seed=seed)


def test_several_choices_differ_and_come_again(flat: ServerProcess) -> None:
    first = texts(flat, seed=1, n=3)
    assert first == texts(flat, seed=1, n=3) and len(set(first)) == 3


FILTERS: list[dict[str, Any]] = [
    {"temperature": 0, "top_k": 0}, {"temperature": 0, "top_k": -1}, {"temperature": 0, "top_k": 10**9},
    {"temperature": 0, "top_p": 0}, {"temperature": 0, "top_p": 1}, {"temperature": 0, "min_p": 1},
    {"temperature": 1e-6}, {"temperature": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_filters_keep_the_likeliest_token(serve: Serve, fields: dict[str, Any]) -> None:
    (choice,) = serve(LETTERS).chat("QQ", **fields, seed=1).json["choices"]
    assert choice["message"]["content"] == "A B C O P Q R"


BANNED = {
    "one candidate": {"top_k": 1},
    "a ban": {"logit_bias": {"70": -100}},
    "a form": {"response_format": {"type": "regex", "regex": "A"}},
}


@pytest.mark.parametrize("name", BANNED)
def test_logprobs_are_finite_and_no_more_than_certain(serve: Serve, name: str) -> None:
    reply = serve(LETTERS).chat("QQ", logprobs=True, top_logprobs=5, max_tokens=2, **BANNED[name])
    for entry in reply.json["choices"][0]["logprobs"]["content"]:  # .json refuses NaN and Infinity
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert all(value <= 0 for value in [entry["logprob"], *values])
        assert sum(2.718281828 ** value for value in values) <= 1 + 1e-6


@pytest.mark.parametrize("n_top", [0, 3, 20])
def test_so_many_top_logprobs_come(flat: ServerProcess, n_top: int) -> None:
    (choice,) = flat.chat(logprobs=True, top_logprobs=n_top, max_tokens=2, ignore_eos=True).json["choices"]
    assert [len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]] == [n_top, n_top]


def test_completions_logprobs_are_four_lists_of_one_length(flat: ServerProcess) -> None:
    body = {"prompt": "QQQQ", "max_tokens": 3, "logprobs": 3, "echo": True, "ignore_eos": True}
    logprobs = flat.post(COMPLETIONS, body).json["choices"][0]["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len({len(values) for values in logprobs.values()}) == 1
    assert logprobs["token_logprobs"][0] is None and None not in logprobs["token_logprobs"][1:]


def test_streamed_choices_join_to_the_whole_ones(flat: ServerProcess) -> None:
    body = {"prompt": ["QQ", "ZZ"], "n": 2, "seed": 5, "max_tokens": 8, "echo": True, "ignore_eos": True}
    body |= {"temperature": 0.8, "top_k": 0}
    joined = ["", "", "", ""]
    for event in flat.post(COMPLETIONS, body | {"stream": True}).events:
        for choice in event["choices"]:
            joined[choice["index"]] += choice["text"]
    assert joined == texts(flat, **body)


def test_a_prompts_beginning_is_reused_and_nothing_else_is(serve: Serve) -> None:
    server = serve(LETTERS)
    prompts = [list(range(20, 20 + n)) for n in (75, 75, 40, 75)]
    first_differs = [19, *range(21, 95)]
    counts = []
    for prompt in [*prompts, first_differs]:
        reply = server.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": 4}).json
        assert reply["choices"][0]["text"] == "A B C O"
        counts.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts[0] == 0 and counts[-1] == 0
    assert all(0 < n < len(p) for n, p in zip(counts[1:-1], prompts[1:]))


def test_no_reader_takes_a_character_for_the_end_of_a_line(serve: Serve) -> None:
    body = serve(['"', "\n\n", "\u2028", "\\"]).chat("QQ", stream=True).body.decode()
    for line in body.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            json.loads(line[6:])


def test_proxies_are_told_not_to_gather_a_stream(serve: Serve) -> None:
    headers = serve(LETTERS).chat("QQ", stream=True).headers
    assert (headers["X-Accel-Buffering"], headers["Cache-Control"]) == ("no", "no-cache")
