"""The metadata of one file, read with limits: what is wrong is told by key, value and what would work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import ModelError, UnsupportedValue

MAX_INT = 2**31 - 1  # ggml's sizes of heads and its positions are 32-bit
MAX_FLOAT = float(np.finfo(np.float32).max)
ABOVE_0 = float(np.finfo(np.float32).tiny)


class Keys:
    """The metadata of one file with the architecture's prefix added to keys that need it."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.metadata = metadata
        self.arch = arch

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `{arch}.key`, or `default`."""
        return self.metadata.get(f"{self.arch}.{key}", default)

    def same(self, key: str) -> Any:
        """A number that may be given layer by layer but must be the same in all; None when the file lacks it."""
        value = self.get(key)
        if isinstance(value, (list, tuple, np.ndarray)):
            values = set(np.asarray(value).ravel().tolist())
            if not values:
                raise self.refused(key, "[]", "one value, or one a layer")
            if len(values) != 1:
                raise UnsupportedValue(
                    f"{self.arch}.{key} differs from layer to layer ({shown(sorted(values))}); one value is supported"
                )
            value = values.pop()
        return value

    def integer(
        self, key: str, low: int, high: int = MAX_INT, default: int | None = None, *, by_layer: bool = False
    ) -> int:
        """The whole number of `{arch}.key`, or `default`, which must lie within the limits too.

        With `by_layer` the file may give it layer by layer. Raises ModelError with the value and the limits,
        also where the file lacks a key that has no default.
        """
        value = self._given(self.same(key) if by_layer else self.get(key), key, default)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
            raise self.refused(key, value, f"a whole number, {low} to {high}")
        return int(value)

    def by_layer(self, key: str, n_layer: int, low: int, default: int) -> tuple[int, ...]:
        """The whole numbers of `{arch}.key`, one a layer, all the same where the file or `default` has one."""
        value = self.get(key, default)
        if isinstance(value, (list, tuple, np.ndarray)):
            listed = np.asarray(value)
            if listed.shape != (n_layer,) or listed.dtype.kind not in "iu" or listed.min() < low:
                raise self.refused(
                    key, value, f"whole numbers, at least {low}, one for each of {n_layer} layers"
                )
            return tuple(listed.tolist())
        return (self.integer(key, low, default=default),) * n_layer

    def number(self, key: str, low: float, high: float = MAX_FLOAT, default: float | None = None) -> float:
        """The finite number of `{arch}.key`, or `default`; the limits include both ends.

        Raises ModelError with the value and the limits, also where the file lacks a key that has no default.
        """
        value = self._given(self.get(key), key, default)
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            least = ", above 0" if low == ABOVE_0 else "" if low == -MAX_FLOAT else f", at least {low:g}"
            limits = least if high == MAX_FLOAT else f", {low:g} to {high:g}"
            raise self.refused(key, value, f"a finite number{limits}")
        return float(value)

    def refused(self, key: str, value: Any, needed: str) -> ModelError:
        """The error that tells the key, its value and what would work."""
        return ModelError(f"{self.arch}.{key} = {shown(value)}; it must be {needed}")

    def _given(self, value: Any, key: str, default: Any) -> Any:
        if value is None and default is None:
            raise ModelError(f"the file lacks the key {self.arch}.{key}")
        return default if value is None else value


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 80 else text[:77] + "..."
