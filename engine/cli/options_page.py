"""The page of all options, in Markdown, made from the table."""

from __future__ import annotations

from collections.abc import Sequence

from .option import Option

_INTRODUCTION = """\
# Options

This page is made from the table in `engine/cli/options.py`: `python -m pyggml.engine.cli.options > docs/options.md`.

Each option may be given on the command line, in the environment, or in a JSON file named by `--config`, where its long
name is the key (`{"model": "model.gguf", "ctx": 8192, "stop": ["###"]}`). The command line wins over the environment,
the environment over files, later files over earlier ones; options that may be given several times add up instead.
A switch `--x` has an opposite `--no-x`, and is `true` or `false` in a file; in the environment also `1` and `0`.
Files may hold comments (`//` and `/* */`) and commas before a closing bracket; `null` is as if the key were absent.
A key that no command knows is refused; one that is another command's is left to it: one file may serve several. Where
the command line or the environment gives another value than a file, one line says so.

`${NAME}` in a text stands for a variable, `${NAME:-fallback}` for one that may be unset or empty. Variables are those
of `variables`, in this file or an earlier one, and then the environment's. `$${` is a plain `${`.

An option that names a file to read may be `{"path": "model.gguf", "urls": ["https://host/model.gguf"], "sha256": "…"}`:
a file that is not there is fetched to its path, from the first address that gives it, and its digest is checked then.

```json config
{
    "variables": {"folder": "${MODELS:-/models}"},
    "model": "${folder}/model.gguf",   // or "hf:owner/repo:Q4_K_M"
    "device": "cuda:0,cuda:1",
    "tp": 2,
    "ctx": "${CTX:-8192}",
    "stop": ["###"],                   /* a list: the option may be given several times */
}
```
"""

# What the library underneath reads, in scripts too.
ENVIRONMENT = {
    "PYGGML_CACHE": "folder for what is built, fetched and found out; by default `~/.cache/pyggml`",
    "PYGGML_LOG_LEVEL": "which of ggml's lines are shown: 1 (debug) to 4 (errors only), by default 3",
    "PYGGML_TRANSPORT": "how ranks on cards exchange sums, as `--transport`",
    "PYGGML_P2P": "`0`: no card reaches another's memory",
    "PYGGML_RETEST": "`1`: peer copies and NCCL are tested anew, whatever earlier tests found",
    "PYGGML_NCCL": "path of the NCCL library to use",
    "PYGGML_NCCL_TRIAL": "`force` tries NCCL at every start, `skip` trusts it; by default its last verdict counts",
    "PYGGML_NCCL_TRIAL_S": "seconds until a trial of NCCL counts as hanging, by default 20; `0`: never",
    "PYGGML_PARALLEL_RANKS": "`0`, for diagnosis: ranks compute one at a time",
    "PYGGML_CUDA_GRAPHS": "`0`: launches are not recorded, as `--no-cuda-graphs`",
    "PYGGML_FUSED": "`0`: CUDA cards compute with ggml's kernels alone; else ours where it pays, with `all` everywhere",
    "PYGGML_CUPTI": "path of the CUPTI library that traces kernels",
}


def page(options: Sequence[Option]) -> str:
    """The page as text."""
    lines = [_INTRODUCTION, "| option | environment | commands | default | example | |", "| --- " * 6 + "|"]
    for option in options:
        names = ", ".join(f"`{flag}`" for flag in option.flags)
        value = "" if option.positional or option.kind.is_flag else f" `{option.kind.metavar}`"
        cells = (
            names + value,
            f"`{option.environment}`",
            ", ".join(option.commands),
            option.shown_default,
            f"`{option.shown_example}`",
            option.help,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "The library reads these from the environment, in scripts too:", ""]
    lines += ["| environment | |", "| --- " * 2 + "|"]
    lines += [f"| `{name}` | {text} |" for name, text in ENVIRONMENT.items()]
    return "\n".join(lines) + "\n"
