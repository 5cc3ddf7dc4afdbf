"""`pyggml run`: one streamed answer, or a chat where no prompt is given and a person is there."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import Any

from ..errors import ConfigError, PromptTooLong
from ..llm import LLM
from ..model import Model
from . import answers
from .chat import Chat
from .loading import is_elsewhere, limit_of, open_llm, open_model, read_text, start_lines, warn_of_unused_gpus
from .sampling import check_bias, chosen_sampling
from .settings import Settings
from .terminal import say


def run(settings: Settings) -> int:
    """Answer the prompt, or chat."""
    sampling = chosen_sampling(settings)
    template = read_text(settings, "chat-template") if settings.is_given("chat-template") else None
    _check_raw(settings)
    # For an empty prompt nothing is fetched; for a slow one no refusal of a file waits.
    fetched_for = _prompt(settings) if is_elsewhere(settings) else None
    with contextlib.closing(open_model(settings)) as model:
        prompt = fetched_for or _prompt(settings)
        is_chat = _is_chat(settings, model, template)
        check_bias(settings, model.hparams.n_vocab)
        if prompt is not None:
            _check_length(settings, model, prompt)
        warn_of_unused_gpus(settings)
        with open_llm(
            settings,
            model,
            ctx=settings["ctx"],
            prefix_cache=settings["prefix-cache"],
            chat_template=template,
        ) as llm:
            if not settings["json"]:
                for line in start_lines(llm):
                    say(line)
            if prompt is None:
                if not is_chat:
                    why = "--raw" if settings["raw"] else "a base model, without a chat template"
                    say(f"{why}: each line is continued as it stands, on its own")
                return Chat(llm, system=settings["system"], is_plain=not is_chat, sampling=sampling).loop()
            _answer(settings, llm, prompt, is_chat, sampling)
    return 0


def _check_raw(settings: Settings) -> None:
    """Raise ConfigError for what has no use beside --raw."""
    if settings["raw"] and settings.is_given("chat-template"):
        raise ConfigError(
            f"{settings.source('raw')} and {settings.source('chat-template')} exclude each other"
        )
    if settings["raw"] and settings["system"] is not None:
        raise _no_system(settings, "with --raw there is no chat")


def _is_chat(settings: Settings, model: Model, template: str | None) -> bool:
    """Whether the template is used. Raises ConfigError for a system prompt that would have no use."""
    has_template = template is not None or model.chat_template is not None
    if settings["system"] is not None and not has_template:
        raise _no_system(settings, "the model has no chat template (a base model)")
    return has_template and not settings["raw"]


def _no_system(settings: Settings, why: str) -> ConfigError:
    return ConfigError(f"{settings.source('system')}: {why}; put the text into the prompt")


def _prompt(settings: Settings) -> str | None:
    """The prompt that was given or piped in, without one trailing line break; None where a person is to type it."""
    prompt: str | None = settings["prompt"]
    if prompt is None and sys.stdin.isatty():
        if settings["json"]:
            raise ConfigError(f"{settings.source('json')} needs a PROMPT, or one piped into standard input")
        return None
    if prompt is None:
        prompt = sys.stdin.read().removesuffix("\n")
    if not prompt:
        raise ConfigError("the prompt is empty; give one as PROMPT or on standard input")
    return prompt


def _check_length(settings: Settings, model: Model, prompt: str) -> None:
    """Refuse before loading what cannot fit; the template's own tokens are counted later."""
    n, limit = len(model.tokenizer.encode(prompt)), limit_of(settings, model)
    if n >= limit:
        raise PromptTooLong(f"the prompt has {n} tokens; with a context of {limit} at most {limit - 1} fit")


def _answer(settings: Settings, llm: LLM, prompt: str, is_chat: bool, sampling: dict[str, Any]) -> None:
    if is_chat:
        stream = llm.chat(_messages(settings, prompt), stream=True, **sampling)
    else:
        stream = llm.generate(prompt, stream=True, **sampling)
    if not settings["json"]:
        answers.show(stream)
        return
    for _ in stream:
        pass
    (completion,) = stream.completions
    document = {
        "text": completion.text,
        "finish_reason": completion.finish_reason.value,
        "stats": answers.stats_document(completion.stats),
        "plan": [asdict(placement) for placement in llm.plan],
        "notes": list(llm.notes),
    }
    print(json.dumps(document, ensure_ascii=False))


def _messages(settings: Settings, prompt: str) -> list[dict[str, str]]:
    system = settings["system"]
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": prompt}]
