"""Numbers as people read them."""

from __future__ import annotations


def shown_bytes(n: int) -> str:
    """Bytes in KiB, MiB, GiB or TiB."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shown_seconds(s: float) -> str:
    """A duration in ms or s."""
    return f"{s * 1000:.0f} ms" if s < 1 else f"{s:.1f} s"


def shown_fine_seconds(s: float) -> str:
    """A duration in us, ms or s, with two digits or more."""
    if s < 1e-3:
        return f"{s * 1e6:.0f} us" if s >= 1e-5 else f"{s * 1e6:.1f} us"
    return f"{s * 1e3:.2f} ms" if s < 0.1 else f"{s * 1e3:.0f} ms" if s < 1 else f"{s:.2f} s"


def shown_rate(per_s: float) -> str:
    """Tokens a second with three figures or more."""
    return f"{per_s:.0f}" if per_s >= 1000 else f"{per_s:.1f}"


def shown_count(n: int, one: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{n} {one}" if n == 1 else f"{n} {one}s"
