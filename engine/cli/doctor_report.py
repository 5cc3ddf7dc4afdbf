"""The findings of `pyggml doctor` as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..topology import CLASSES
from .table import render
from .terminal import printable
from .units import shown_bytes, shown_fine_seconds


def report_lines(document: dict[str, Any]) -> Iterator[str]:
    """Everything, for people."""
    build, threads = document["build"], f"{document['threads']} threads"
    yield f"pyggml {document['pyggml']}, Python {document['python']}, {document['system']}, {threads}"
    source = f"llama-cpp-python {build['lock']}" if build["lock"] else "an unknown source"
    yield f"build: ggml of {source}, backends {', '.join(build['backends'] or ['unknown'])}"
    if document["driver"]:
        yield f"driver: {document['driver']}"
    yield from (f"{name}={printable(value)}" for name, value in document["environment"].items())
    yield ""
    yield _device_table(document["devices"])
    yield ""
    if document["copies"]:
        yield _copy_table(document["copies"])
        yield ""
    if document["sums"]:
        yield f"one sum of so many float32 numbers over {', '.join(document['ranks'])}"
        yield _sum_table(document["sums"], document["transports"])
        yield ""
    yield from (printable(f"- {line}") for line in document["findings"] or ["nothing to mend was found"])


def _device_table(devices: list[dict[str, Any]]) -> str:
    rows = []
    for d in devices:
        speed, at = d["speed"], d["seat"] or {}
        rows.append(
            (
                d["name"],
                printable(d["description"]),
                f"{shown_bytes(d['memory_free_bytes'])} of {shown_bytes(d['memory_total_bytes'])}",
                "" if speed is None else f"{speed['bandwidth'] / 1e9:.1f} GB/s",
                "" if speed is None else f"{speed['flops'] / 1e9:.{0 if speed['flops'] > 1e10 else 1}f} GFLOP/s",
                "" if speed is None else shown_fine_seconds(speed["layer_s"]),
                d["bus_id"] or "",
                "" if at.get("numa_node") is None else at["numa_node"],
                f"x{at['width']} of x{at['max_width']}" if at.get("width") else "",
            )
        )
    header = ("device", "description", "free", "reads", "computes", "a small step", "bus id", "NUMA", "PCIe")
    n_known = max((i + 1 for row in rows for i, cell in enumerate(row) if cell != ""), default=len(header))
    return render([row[:n_known] for row in rows], header=header[:n_known], right=(3, 4, 5))


def _copy_table(copies: list[dict[str, Any]]) -> str:
    rows = []
    for c in copies:
        times = ["", "", ""]
        if not c["problem"]:
            rate = f"{c['bytes_per_s'] / 1e9:.1f} GB/s"
            times = [shown_fine_seconds(c["small_s"]), shown_fine_seconds(c["large_s"]), rate]
        ranks, state, way = f"{c['source']} -> {c['target']}", c["problem"] or "ok", CLASSES.get(c["between"], "")
        rows.append((ranks, c["from"], c["to"], state, *times, way))
    last = "PCIe between them" if any(row[-1] for row in rows) else ""
    header = ("ranks", "from", "to", "content", "16 KiB", "8 MiB", "rate", last)
    return render(rows, header=header, right=(4, 5, 6))


def _sum_table(sums: dict[str, dict[int, float]], transports: dict[str, Any]) -> str:
    sizes = sorted({n for times in sums.values() for n in times})
    rows = []
    for row in transports["transports"]:
        times = sums.get(row["name"], {})
        cells = [shown_fine_seconds(times[n]) if n in times else "" for n in sizes]
        chosen = [s for s in transports["chosen"] if s["name"] == row["name"]]
        rows.append((row["name"], *cells, _use(chosen) or printable(row["reason"])))
    header = ("transport", *(str(n) for n in sizes), "")
    return render(rows, header=header, right=range(1, len(sizes) + 1))


def _use(spans: list[dict[str, Any]]) -> str:
    """For which sums a transport is used."""
    if not spans:
        return ""
    start = spans[0]["min_elements"]
    return "used" if start == 0 else f"used from {start} elements on"
