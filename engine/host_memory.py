"""Memory that the host can still give, as Linux and the process's control groups tell it.

Pages of files count as free, since they can be dropped. Knows nothing of devices.
"""

from __future__ import annotations

import re
from pathlib import Path

# The highest limit of a control group that has none is a huge number.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping; None where Linux does not say."""
    said = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    known = [] if said is None else [1024 * int(said[1])]
    return min([*known, *_left_in_groups(root)], default=None)


def _left_in_groups(root: Path) -> list[int]:
    """What each control group of this process, and those around it, has left."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        own = top / path.lstrip("/")
        for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(top))):
            left = _left(folder, *(_V1 if controllers else _V2))
            if left is not None:
                found.append(left)
    return found


def _left(folder: Path, limit_name: str, used_name: str, files_name: str) -> int | None:
    limit, used = _text(folder / limit_name).strip(), _text(folder / used_name).strip()
    if not limit.isdecimal() or not used.isdecimal():
        return None
    files = re.search(rf"^{files_name} (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(files[1]) if files else 0))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
