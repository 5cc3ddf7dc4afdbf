"""How far one array is from another, and where."""

from __future__ import annotations

import numpy as np

OFF = 1e-3  # of the largest value: elements further away are counted


def nmse(found: np.ndarray | None, right: np.ndarray | None) -> float:
    """Squared error over the squared size of what is right; equal NaNs and infinities are no error."""
    if found is None or right is None:
        return 0.0
    if found.shape != right.shape:
        return float("inf")
    found, right = found.astype(np.float64), right.astype(np.float64)
    same = (found == right) | (np.isnan(found) & np.isnan(right))
    found, right = (np.where(same & ~np.isfinite(right), 0, values) for values in (found, right))
    if same.all():
        return 0.0
    with np.errstate(all="ignore"):
        error = float(((found - right) ** 2).sum() / max(float((right**2).sum()), 1e-300))
    return error if np.isfinite(error) else float("inf")


def worst_place(found: np.ndarray, right: np.ndarray) -> str:
    """Where two arrays are furthest apart, and how far along each axis they are."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(found - right)
    distance[~np.isfinite(distance)] = np.inf
    distance[(found == right) | (np.isnan(found) & np.isnan(right))] = 0
    is_off = distance > OFF * np.abs(right[np.isfinite(right)]).max(initial=0)
    at = np.unravel_index(int(distance.argmax()), distance.shape)
    words = [f"worst at {[int(i) for i in at]} (numpy's order): {found[at]:.6g} for {right[at]:.6g}"]
    words.append(f"off: {int(is_off.sum())} of {is_off.size}")
    for axis, length in enumerate(is_off.shape):
        if length > 1:
            places = np.flatnonzero(is_off.any(axis=tuple(x for x in range(is_off.ndim) if x != axis)))
            few = str(places.tolist()) if len(places) <= 6 else f"{places[0]}..{places[-1]}"
            words.append(f"axis {axis}: {len(places)} of {length} {few}")
    return "; ".join(words)
