"""A file that an option file names together with where it comes from: `{"path": …, "urls": […], "sha256": …}`.

It is fetched once, from the first address that gives it; its digest is checked when it comes and not again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..downloads.model_address import address_parts
from ..errors import ConfigError

_KEYS = ("path", "urls", "sha256")
_FORM = '{"path": "model.gguf", "urls": ["https://host/model.gguf"], "sha256": "…"}'


@dataclass(frozen=True)
class FileSource:
    """Where a file is to lie, and the addresses to try in order. `source` is who says so, for messages."""

    path: str
    urls: tuple[str, ...]
    sha256: str
    source: str

    @classmethod
    def read(cls, value: dict[str, Any], source: str) -> FileSource:
        """From an object of an option file; raises ConfigError for one of another form."""
        wrong = [key for key in value if key not in _KEYS]
        urls, path, sha256 = value.get("urls"), value.get("path"), value.get("sha256") or ""
        if wrong:
            raise ConfigError(f"{source}: there is no {wrong[0]!r} in a file; it is {_FORM}")
        if not isinstance(path, str) or not path or "\0" in path:
            raise ConfigError(f"{source}: path must be that of a file; a file is {_FORM}")
        if not isinstance(urls, list) or not urls or not all(_is_url(url) for url in urls):
            raise ConfigError(f"{source}: urls must be a list of addresses that begin with http; a file is {_FORM}")
        for url in urls:
            _check_url(url, source)
        if not isinstance(sha256, str) or not re.fullmatch(r"([0-9a-fA-F]{64})?", sha256):
            raise ConfigError(f"{source}: sha256 must be 64 hexadecimal digits")
        return cls(path, tuple(urls), sha256.lower(), source)

    def fetch(self, *, is_model: bool, offline: bool) -> None:
        """Fetch it where it is not there yet; raises ConfigError and DownloadError naming every address that failed."""
        path = Path(self.path).expanduser()
        if path.exists():
            return
        from ..downloads.fetching import fetch_to

        try:
            fetch_to(path, self.urls, self.sha256, is_model=is_model, offline=offline)
        except ConfigError as error:
            raise ConfigError(f"{self.source}: {error}") from error


def _check_url(url: str, source: str) -> None:
    try:
        address_parts(url)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _is_url(url: object) -> bool:
    return isinstance(url, str) and url.lower().startswith(("http://", "https://"))
