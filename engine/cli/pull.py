"""`pyggml pull`: fetches a model, or a newer state of it."""

from __future__ import annotations

import json

from ..downloads.fetching import fetch
from .loading import named_address, room_here
from .settings import Settings
from .terminal import printable
from .units import shown_bytes


def pull(settings: Settings) -> int:
    """Fetch what was named and print where it lies."""
    address = named_address(settings)
    fetched = fetch(address, lambda: room_here(settings), offline=settings["offline"], is_anew=True)
    if settings["json"]:
        document = {
            "name": str(address),
            "quantisation": fetched.label,
            "path": str(fetched.paths[0]),
            "files": [str(path) for path in fetched.paths],
            "n_bytes": fetched.n_bytes,
            "n_new_bytes": fetched.n_new_bytes,
        }
        print(json.dumps(document, ensure_ascii=False))
    else:
        new = "nothing new" if not fetched.n_new_bytes else f"{shown_bytes(fetched.n_new_bytes)} new"
        print(f"{printable(str(fetched.paths[0]))}  ({shown_bytes(fetched.n_bytes)}, {new})")
    return 0
