"""Verdicts of tests that take long or may hang, kept in the user's cache folder by the facts that they depend on.

A file a verdict; one that cannot be read or written is as if it were not there. PYGGML_RETEST=1 makes every test anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = logging.getLogger("pyggml.transport")
_OFF = ("", "0", "off", "no", "false")


def is_retest_wanted() -> bool:
    """Whether the environment asks for new tests."""
    return os.environ.get("PYGGML_RETEST", "").strip().lower() not in _OFF


def cache_dir() -> Path:
    """Where verdicts are kept."""
    base = os.environ.get("PYGGML_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pyggml"
    )
    return Path(base).expanduser() / "verdicts"


def read_verdict(facts: Mapping[str, object]) -> Any:
    """What keep_verdict() kept under these facts, None for nothing."""
    try:
        return json.loads(_path(facts).read_text())["verdict"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_verdict(facts: Mapping[str, object], verdict: object) -> None:
    """Keep it, with the facts for people to read."""
    path = _path(facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump({**facts, "verdict": verdict}, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        LOG.info("a verdict on the cards cannot be kept: %s", error)


def _path(facts: Mapping[str, object]) -> Path:
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / f"{name}.json"


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The NVIDIA driver's version, "unknown" where it does not say."""
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", proc.read_text().splitlines()[0])
    except (OSError, IndexError):
        return "unknown"
    return found[1] if found else "unknown"


def boot_id(proc: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """This start of the machine; settings that peer copies depend on change with the next one only."""
    try:
        return proc.read_text().strip()
    except OSError:
        return "unknown"
