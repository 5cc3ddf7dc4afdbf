"""How much memory this process holds."""

from __future__ import annotations

from pathlib import Path


def resident_bytes() -> int:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells RssAnon")
