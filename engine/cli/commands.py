"""The commands, by name: what each is for and the function that does it.

A function is named as "module:function", taken with importlib when the command runs, and may be of
any installed package. It takes the Settings and returns the exit status.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from .settings import Settings


@dataclass(frozen=True)
class Command:
    """One command. `usage` are its arguments beside the options; a name of two words is a group and a member."""

    usage: str
    summary: str
    target: str

    def load(self) -> Callable[[Settings], int]:
        """Import the function."""
        module, _, name = self.target.partition(":")
        function: Callable[[Settings], int] = getattr(importlib.import_module(module), name)
        return function


_HERE = __name__.rpartition(".")[0]
COMMANDS = {
    "run": Command(
        "MODEL [PROMPT]",
        "answer one prompt (given, or piped in), or chat where there is none",
        f"{_HERE}.run:run",
    ),
    "serve": Command("MODEL", "answer over HTTP, as OpenAI's API does", f"{_HERE}.serve:serve"),
    "bench": Command(
        "MODEL", "measure prefill and decode speed, for one sequence and for several", f"{_HERE}.bench:bench"
    ),
    "eval logits": Command(
        "MODEL --out FILE",
        "write the logits of given tokens to a .npy file",
        f"{_HERE}.eval_logits:eval_logits",
    ),
    "eval ppl": Command(
        "MODEL --file TEXT",
        "measure the perplexity of a text, and keep its log-probabilities",
        f"{_HERE}.eval_ppl:eval_ppl",
    ),
    "eval kl": Command(
        "MODEL --base FILE",
        "measure how far a run's predictions are from llama.cpp's or another run's",
        f"{_HERE}.eval_kl:eval_kl",
    ),
    "pull": Command("MODEL", "fetch a model, or a newer state of it", f"{_HERE}.pull:pull"),
    "list": Command(
        "[MODEL]",
        "list the models that were fetched, or those of a repository",
        f"{_HERE}.stored_models:list_models",
    ),
    "rm": Command("MODEL", "remove a model that was fetched", f"{_HERE}.stored_models:remove_model"),
    "inspect": Command(
        "MODEL",
        "say what a model file is and whether it can be served",
        f"{_HERE}.inspect_model:inspect_model",
    ),
    "plan": Command(
        "MODEL",
        "say what would be placed where, what fits, and how fast each way would be",
        f"{_HERE}.plan:plan",
    ),
    "doctor": Command(
        "", "test devices and the links between them, and say what to mend", f"{_HERE}.doctor:doctor"
    ),
    "devices": Command("", "list the devices of this machine", f"{_HERE}.devices:devices"),
}
