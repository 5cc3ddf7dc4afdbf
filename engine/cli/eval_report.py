"""The figures of `pyggml eval kl` as a table for people."""

from __future__ import annotations

from typing import Any

from .table import render
from .terminal import one_line
from .units import shown_seconds


def report(document: dict[str, Any]) -> str:
    """The table, and a line that holds the run against the noise floor."""
    run, floor = document["run"], document["floor"]
    columns = [column(found) for found in (run, floor) if found is not None]
    rows = [(name, *(c[name] for c in columns)) for name in columns[0] if all(name in c for c in columns)]
    where = f"{run['n_positions']} positions in {document['n_windows']} windows of {document['n_ctx']} tokens"
    lines = [
        f"{one_line(document['model'])} beside {one_line(document['base'])}",
        f"{where}, {shown_seconds(document['seconds'])}",
        "",
        render(rows, header=("", "this run", "floor")[: 1 + len(columns)], right=(1, 2)),
    ]
    if floor is not None:
        is_above = run["kl"]["mean"] > floor["kl"]["mean"] + floor["kl"]["error"]
        lines += ["", f"mean KL is {'ABOVE' if is_above else 'not above'} the floor's, standard error included"]
    return "\n".join(lines)


def column(found: dict[str, Any]) -> dict[str, str]:
    """The figures of one comparison by their names."""
    kl, same, ratio, change = (found[name] for name in ("kl", "same_top", "log_ratio", "probability_change"))
    quantiles = [(f"{name} of KL", f"{value:.3g}") for name, value in kl["quantiles"].items()]
    cells = {
        "mean KL": f"{kl['mean']:.3g} +- {kl['error']:.1g}",
        "maximum KL": f"{kl['maximum']:.3g}",
        **dict(quantiles[: len(quantiles) // 2]),
        "median KL": f"{kl['median']:.3g}",
        **dict(quantiles[len(quantiles) // 2 :]),
        "minimum KL": f"{kl['minimum']:.3g}",
        "same likeliest token": f"{100 * same['mean']:.3f} +- {100 * same['error']:.3f} %",
        "identical positions": str(found["n_identical"]),
        "perplexity": _with_error(found["perplexity"]),
        "perplexity of the base": _with_error(found["base_perplexity"]),
        "log of their ratio": f"{ratio['mean']:.3g} +- {ratio['error']:.1g}",
        "change of probability, RMS": f"{100 * change['rms']:.3g} %",
    }
    if "logits" in found:
        cells["largest distance of logits"] = f"{found['logits']['largest_distance']:.3g}"
        cells["relative distance of logits"] = f"{found['logits']['relative_l2']:.3g}"
    return cells


def _with_error(found: dict[str, float]) -> str:
    return f"{found['value']:.4f} +- {found['error']:.4f}"
