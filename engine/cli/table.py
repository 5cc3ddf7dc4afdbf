"""Plain-text tables: columns as wide as their widest cell, two spaces apart."""

from __future__ import annotations

from collections.abc import Sequence


def render(rows: Sequence[Sequence[object]], *, header: Sequence[str] = (), right: Sequence[int] = ()) -> str:
    """Rows as aligned lines; the columns in `right` are aligned to the right."""
    lines = [[str(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines)]
    aligned = (
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths))
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)
