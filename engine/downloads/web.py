"""GGUF files at plain addresses, kept in a folder of ours beside what was known of them when they came.

A server is asked once for size, version and digest; a digest in the address holds before the server's. What lies here
is used without asking again.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import ConfigError, DownloadError
from ..model_files import cache_dir
from .model_address import WebAddress
from .refusals import explained
from .transfer import INCOMPLETE, Progress, Wanted, transfer
from .variant import shard_paths

_NOTE = ".json"
_ONCE: dict[str, Any] = {"retry_on_exceptions": (), "retry_on_status_codes": ()}


def folder() -> Path:
    """Where models from plain addresses lie, a folder for each host."""
    return cache_dir() / "models" / "web"


def shards(address: WebAddress) -> list[WebAddress]:
    """The addresses of all files of a model, of which one is given; a digest in it belongs to a single file."""
    parts = urlsplit(address.url)
    paths = shard_paths(parts.path)
    if len(paths) == 1:
        return [address]
    if address.sha256:
        raise ConfigError(f"{address} is one of {len(paths)} files; sha256= can be given for a single one only")
    return [WebAddress(urlunsplit(parts._replace(path=path))) for path in paths]


def place(address: WebAddress) -> Path:
    """Where a file lies, or would lie."""
    parts = urlsplit(address.url)
    names = [unquote(name).replace("/", "_") for name in parts.path.split("/") if name]
    host = (parts.hostname or "") + (f"_{parts.port}" if parts.port else "")
    return folder().joinpath(host, *(name if set(name) != {"."} else "_" for name in names))


def note(path: Path) -> dict[str, Any]:
    """What was noted of a file when it came; nothing where there is no note."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.with_name(path.name + _NOTE).read_text())
        if isinstance(found, dict):
            return found
    return {}


def wanted_file(address: WebAddress) -> Wanted:
    """Ask the server about a file. What is here of another version is removed.

    Raises ConfigError for what it refuses, DownloadError where it cannot be asked.
    """
    wanted, version = _asked(address, place(address), is_gguf=True)
    _drop_other_versions(wanted, version)
    return wanted


def wanted_at(address: WebAddress, path: Path, *, is_gguf: bool) -> Wanted:
    """As wanted_file() for a file that is to lie elsewhere. A part of it goes on only where a digest is known."""
    wanted, _ = _asked(address, path, is_gguf=is_gguf)
    if not wanted.digest:
        wanted.part.unlink(missing_ok=True)
    return wanted


def _asked(address: WebAddress, target: Path, *, is_gguf: bool) -> tuple[Wanted, str]:
    """What a server says of a file, and the version that it is."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff

    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    headers = {"Accept-Encoding": "identity"}
    try:
        # Not HEAD, which signed addresses refuse: the headers of GET, without reading on.
        with http_stream_backoff("GET", address.url, headers=headers, timeout=30.0, **_ONCE) as response:
            hf_raise_for_status(response)
            answered = response.headers
    except (network_error, OSError) as error:
        raise explained(error, str(address)) from error
    length = answered.get("Content-Length", "")
    n_bytes = int(length) if length.isdecimal() and not answered.get("Content-Encoding") else None
    sha256 = address.sha256 or _promised_sha256(answered)
    digest = f"sha256:{sha256}" if sha256 else ""
    wanted = Wanted(str(address), address.url, target, n_bytes, digest, headers, is_gguf)
    return wanted, answered.get("ETag") or answered.get("Last-Modified") or ""


def _promised_sha256(headers: Mapping[str, str]) -> str:
    """The SHA-256 that a server gives for a whole file, in one of the headers that servers have for it."""
    for name, pattern in (
        ("Repr-Digest", r"sha-256=:([A-Za-z0-9+/=]+):"),
        ("Digest", r"(?i:sha-256)=([A-Za-z0-9+/=]+)"),
        ("X-Checksum-Sha256", r"([0-9a-fA-F]{64})"),
        ("X-Linked-Etag", r'"?([0-9a-f]{64})"?'),
    ):
        match = re.search(pattern, headers.get(name, ""))
        if match and len(match[1]) == 64:
            return match[1].lower()
        if match:
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(match[1], validate=True).hex()
    return ""


def _drop_other_versions(wanted: Wanted, version: str) -> None:
    before = note(wanted.target)
    now = {"url": wanted.name, "version": version, "n_bytes": wanted.n_bytes, "sha256": wanted.digest[7:]}
    same = all(before.get(key) == now[key] for key in ("url", "version", "n_bytes")) and bool(version)
    if wanted.digest and before.get("sha256") not in (None, "", wanted.digest[7:]):
        same = False
    if same:
        return
    wanted.target.unlink(missing_ok=True)
    wanted.part.unlink(missing_ok=True)
    _write_note(wanted.target, now)


def _write_note(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + _NOTE).write_text(json.dumps(content))


def fetch_file(wanted: Wanted, progress: Progress) -> Path:
    """Fetch a file that is not here yet, and note its digest."""
    if not wanted.target.exists():
        sha256 = transfer(wanted, progress)
        if sha256:
            _write_note(wanted.target, note(wanted.target) | {"sha256": sha256})
    return wanted.target


def check_noted(address: WebAddress) -> None:
    """Raises DownloadError where the address has a digest that is not the one of the file here."""
    found = note(place(address)).get("sha256")
    if address.sha256 and found != address.sha256:
        raise DownloadError(
            f"{address} lies here with the SHA-256 {found} in place of {address.sha256}; fetch it anew after: "
            f"pyggml rm {address}"
        )


def stored_files() -> Iterator[Path]:
    """The files that lie here, also those that are not whole."""
    for path in sorted(folder().rglob("*")):
        if path.name.endswith((".gguf", INCOMPLETE)) and path.is_file():
            yield path


def remove(address: WebAddress) -> int:
    """Remove all files of a model and their notes; the bytes that are free again."""
    n_bytes = 0
    for shard in shards(WebAddress(address.url)):
        path = place(shard)
        for each in (path, path.with_name(path.name + INCOMPLETE), path.with_name(path.name + _NOTE)):
            with contextlib.suppress(FileNotFoundError):
                n_bytes += each.stat().st_size
                each.unlink()
        for parent in path.parents:
            if parent == folder() or not parent.exists() or any(parent.iterdir()):
                break
            parent.rmdir()
    return n_bytes
