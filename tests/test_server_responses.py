"""/v1/responses: shapes, events, keeping, fetching, continuing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from forced import write_forced
from server_process import Reply, ServerProcess

ANSWER = "Blue, for the air scatters it."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_forced(tmp_path_factory.mktemp("serve") / "sky.gguf", ANSWER).path
    with ServerProcess(model, "--ctx", 1024) as server:
        yield server


def ask(server: ServerProcess, text: Any = "WHY", **fields: Any) -> Reply:
    return server.post("/v1/responses", {"input": text, "temperature": 0} | fields)


def events(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    return [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: ")]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def test_the_output_is_one_message(server: ServerProcess) -> None:
    response = ask(server).json
    (item,) = response["output"]
    assert (response["status"], item["type"], item["status"]) == ("completed", "message", "completed")
    assert text_of(response) == ANSWER
    usage = response["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]


def test_a_cut_answer_is_incomplete(server: ServerProcess) -> None:
    response = ask(server, max_output_tokens=3).json
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_events_are_numbered_and_end_with_the_whole_response(server: ServerProcess) -> None:
    found = events(ask(server, stream=True))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == ANSWER
    assert found[-1]["type"] == "response.completed"
    assert text_of(found[-1]["response"]) == ANSWER


def test_event_names_are_the_types(server: ServerProcess) -> None:
    lines = ask(server, stream=True).body.decode().splitlines()
    names = [line[7:] for line in lines if line.startswith("event: ")]
    assert names == [event["type"] for event in events(ask(server, stream=True))]


def test_a_response_can_be_fetched(server: ServerProcess) -> None:
    response = ask(server).json
    assert server.get(f"/v1/responses/{response['id']}").json == response


def test_a_streamed_response_can_be_fetched(server: ServerProcess) -> None:
    response = events(ask(server, stream=True))[-1]["response"]
    assert server.get(f"/v1/responses/{response['id']}").json == response


def test_the_input_can_be_fetched(server: ServerProcess) -> None:
    response = ask(server, "Hello there").json
    (item,) = server.get(f"/v1/responses/{response['id']}/input_items").json["data"]
    assert item["content"] == [{"type": "input_text", "text": "Hello there"}]


def test_what_is_not_to_be_stored_is_not(server: ServerProcess) -> None:
    response = ask(server, store=False).json
    assert server.get(f"/v1/responses/{response['id']}").status == 404


def test_a_deleted_response_is_gone(server: ServerProcess) -> None:
    path = f"/v1/responses/{ask(server).json['id']}"
    assert server.request("DELETE", path).json["deleted"] is True
    assert (server.get(path).status, server.request("DELETE", path).status) == (404, 404)


def test_a_continued_response_has_what_was_said_before(server: ServerProcess) -> None:
    first = ask(server, "Hello there").json
    again = ask(server, "WHY", previous_response_id=first["id"]).json
    alone = ask(server, "WHY").json
    spoken = ask(
        server,
        [
            {"role": "user", "content": "Hello there"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
            {"role": "user", "content": "WHY"},
        ],
    ).json
    assert again["usage"]["input_tokens"] == spoken["usage"]["input_tokens"] > alone["usage"]["input_tokens"]
    assert again["previous_response_id"] == first["id"]


def test_instructions_are_not_carried_over(server: ServerProcess) -> None:
    first = ask(server, "Hello there", instructions="Speak like a pirate, and never stop.").json
    plain = ask(server, "Hello there").json
    continued = [ask(server, "WHY", previous_response_id=r["id"]).json["usage"]["input_tokens"] for r in (first, plain)]
    assert continued[0] == continued[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_nothing"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        ({"input": [{"type": "input_image"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.json_schema.schema"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    reply = server.post("/v1/responses", {"input": "WHY"} | fields)
    assert reply.status in (400, 404)
    assert reply.json["error"]["param"] == param


def test_logprobs_come_when_included(server: ServerProcess) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 2}
    (part,) = ask(server, **fields).json["output"][0]["content"]
    assert [len(entry["top_logprobs"]) for entry in part["logprobs"]] == [2, 2]
