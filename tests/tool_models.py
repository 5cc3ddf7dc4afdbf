"""Servers of models that call a tool, or that reason before they answer, whatever they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forced import write_forced
from server_process import ServerProcess

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "<think>I wonder.</think>Fine"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
THINKING = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}#
{# <think> </think> #}"""


def caller_in(folder: Path) -> ServerProcess:
    """A server of a model that calls the tool."""
    model = write_forced(folder / "call.gguf", CALL).path
    return ServerProcess(model, "--ctx", 1024, "--threads", 1)


def thinker_in(folder: Path, template: str = THINKING) -> ServerProcess:
    """A server of a model that reasons, then says Fine."""
    model = write_forced(folder / "think.gguf", THOUGHT).path
    (folder / "template.jinja").write_text(template)
    return ServerProcess(model, "--ctx", 512, "--threads", 1, "--chat-template", folder / "template.jinja")
