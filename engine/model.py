"""A model file opened for serving: what it is, its words and its template, but not its weights.

Everything is read from the GGUF file alone and only when first asked for.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import pyggml as gg

from .chat_template import ChatTemplate
from .errors import ModelError
from .hparams import HParams
from .model_files import find_model
from .models import family
from .models.family import Family
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer
from .weights import Found, find_weights

_POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # llama.cpp's numbers


class Model:
    """A GGUF model: `Model("model.gguf")`, or `smollm2` and `gemma3` from their packages.

    Raises GGUFError for a bad file, ModelError for a sound one that is not a model.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self.path = find_model(name)
        self.file = gg.GGUF(self.path)

    @property
    def metadata(self) -> Any:
        """The file's keys and values."""
        return self.file.metadata

    @cached_property
    def arch(self) -> str:
        """The architecture's name in the file."""
        arch = self.file.architecture
        if not arch:
            raise ModelError(
                f"{self.path}: the key general.architecture is missing; this GGUF holds no model"
            )
        return str(arch)

    @cached_property
    def family(self) -> Family:
        """The family that knows this architecture."""
        return family(self.arch)

    @cached_property
    def hparams(self) -> HParams:
        """The model's numbers."""
        family = self.family
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(
                f"{self.path}: the tensor token_embd.weight is missing; this GGUF holds no complete model"
            )
        return family.hparams(self.metadata, self.arch, int(embedding.shape[0]))

    @cached_property
    def weights(self) -> list[Found]:
        """The family's table matched with the file."""
        return find_weights(self.file, self.family, self.hparams)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file."""
        return Tokenizer.from_gguf(self.metadata)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template of the file, None for a base model."""
        return ChatTemplate.from_gguf(self.metadata, self.tokenizer)

    @property
    def pooling(self) -> str | None:
        """How the file says that hidden states become one vector; None where it says nothing that is known here."""
        return _POOLINGS.get(self.metadata.get(f"{self.arch}.pooling_type"))

    def sampling(self, **chosen: Any) -> SamplingParams:
        """Sampling parameters: what was chosen, else the file's, else the defaults."""
        return SamplingParams.with_file_defaults(self.metadata, **chosen)

    @property
    def name(self) -> str:
        """The model's name in the file, else the file's name."""
        return str(self.metadata.get("general.name") or os.path.basename(self.path))

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(t.n_bytes for t in self.file.tensors.values())

    def close(self) -> None:
        """Close the file. Mapped weights must not be used any more."""
        self.file.close()
