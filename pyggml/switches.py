"""Environment variables that are on or off."""

from __future__ import annotations

import os

from .errors import DeviceError

ON_WORDS, OFF_WORDS = ("1", "on", "yes", "true"), ("0", "off", "no", "false")


def is_on(name: str) -> bool:
    """Whether a switch is on, as it is where nothing was said. Raises DeviceError for any other word."""
    word = os.environ.get(name, "").strip().lower() or "1"
    if word not in ON_WORDS + OFF_WORDS:
        raise DeviceError(f"{name}={os.environ[name]}; one of {', '.join(OFF_WORDS + ON_WORDS)} is needed")
    return word in ON_WORDS
