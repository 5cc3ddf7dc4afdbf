"""Repositories of the Hugging Face hub, and the folder where huggingface_hub keeps what came from there.

The folder's layout is huggingface_hub's (blobs, snapshots, refs), so that other programs find the models and ours finds
theirs. Files come by transfer.py, since its own download of 2.4 keeps no part of a file when a process ends; through it
come only those of more than 50 GB, which the hub does not give by plain HTTP. Token and address are huggingface_hub's.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DownloadError
from .model_address import MAIN, HubAddress
from .refusals import explained
from .transfer import INCOMPLETE, Progress, Wanted, sha256_of, transfer
from .variant import RemoteFile, Variant, variants

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PREFIX = "models--"


def cache_folder() -> Path:
    """Where models of the hub lie."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """Where the models of a repository lie."""
    return cache_folder() / (_PREFIX + repo.replace("/", "--"))


def listing(address: HubAddress) -> tuple[str, list[Variant]]:
    """The commit that a revision is, and the models in it.

    Raises ConfigError where there is no such repository or revision or no model in it, DownloadError where the hub
    cannot be asked.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    repo = HubAddress(address.repo, address.revision)
    api = HfApi(library_name="pyggml")
    try:
        info = api.model_info(address.repo, revision=address.revision, files_metadata=True, timeout=30.0)
    except HFValidationError as error:
        raise ConfigError(f"{repo} cannot be a repository of the hub: {error}") from error
    except (network_error, OSError) as error:
        raise explained(error, str(repo)) from error
    found = variants(_remote_file(sibling) for sibling in info.siblings or [])
    if not found:
        raise ConfigError(f"{repo} holds no GGUF model")
    return str(info.sha), found


def _remote_file(sibling: Any) -> RemoteFile:
    etag = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    return RemoteFile(sibling.rfilename, sibling.size or 0, _digest(etag) if etag else "")


def stored(address: HubAddress) -> list[Variant]:
    """The models of a repository that lie here whole, the largest first; no network.

    Of the main revision older states count too, where a newer one lacks a model.
    """
    folder = repo_folder(address.repo)
    found: dict[str, RemoteFile] = {}
    for snapshot in _snapshots(folder, address.revision):
        for path in sorted(snapshot.rglob("*.gguf")):
            name = path.relative_to(snapshot).as_posix()
            if path.is_file():
                found.setdefault(name, RemoteFile(name, path.stat().st_size, f"at:{path}"))
    return variants(found.values())


def stored_path(file: RemoteFile) -> Path:
    """Where a file of stored() lies."""
    return Path(file.digest.removeprefix("at:"))


def _snapshots(folder: Path, revision: str) -> list[Path]:
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    chosen = [folder / "snapshots" / commit]
    if revision == MAIN:
        others = [path for path in (folder / "snapshots").glob("*") if path.name != commit]
        chosen += sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
    return [path for path in chosen if path.is_dir()]


def wanted_files(address: HubAddress, commit: str, variant: Variant) -> list[Wanted]:
    """What a variant needs, each file under its digest in the folder of blobs."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers(library_name="pyggml") | {"Accept-Encoding": "identity"}
    wanted = []
    for file in variant.files:
        url = hf_hub_url(address.repo, file.path, revision=commit, endpoint=constants.ENDPOINT)
        name = f"{address.repo}/{file.path}"
        digest, n_bytes = (file.digest, file.n_bytes) if file.digest else _promised(url, name, headers)
        target = repo_folder(address.repo) / "blobs" / digest.partition(":")[2]
        wanted.append(Wanted(name, url, target, n_bytes, digest, headers))
    return wanted


def _promised(url: str, name: str, headers: dict[str, str]) -> tuple[str, int | None]:
    """A file's digest and size where the list of files had none, as mirrors do."""
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import HfHubHTTPError

    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        metadata = get_hf_file_metadata(url, headers=headers)
    except (network_error, OSError) as error:
        raise explained(error, name) from error
    return _digest(metadata.etag), metadata.size


def _digest(etag: str | None) -> str:
    if etag and re.fullmatch(r"[0-9a-f]{64}", etag):
        return f"sha256:{etag}"
    if etag and re.fullmatch(r"[0-9a-f]{40}", etag):
        return f"git:{etag}"
    raise DownloadError(f"the hub gives the digest {etag!r} for a file, which is none")


def fetch_file(address: HubAddress, commit: str, path: str, wanted: Wanted, progress: Progress) -> Path:
    """Fetch a file that is not here yet and give it its place in the commit's snapshot."""
    if ".." in path.split("/") or path.startswith("/"):
        raise DownloadError(f"the hub names a file {path!r}, which would lie outside of its folder")
    pointer = repo_folder(address.repo) / "snapshots" / commit / path
    if pointer.exists():
        return pointer
    if not wanted.target.exists():
        if (wanted.n_bytes or 0) > _max_http_bytes():
            return _by_library(address, commit, path, wanted)
        transfer(wanted, progress)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    link = pointer.with_name(f".{pointer.name}.{uuid.uuid4().hex}")
    try:
        link.symlink_to(os.path.relpath(wanted.target, pointer.parent))
    except OSError:  # a file system without links
        os.replace(wanted.target, pointer)
    else:
        os.replace(link, pointer)  # another process may do the same now, or a link be there that leads nowhere
    return pointer


def _max_http_bytes() -> int:
    from huggingface_hub import constants

    return int(constants.MAX_HTTP_DOWNLOAD_SIZE)


def _by_library(address: HubAddress, commit: str, path: str, wanted: Wanted) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        pointer = Path(hf_hub_download(address.repo, path, revision=commit, library_name="pyggml"))
    except (network_error, OSError, ValueError, RuntimeError) as error:
        raise explained(error, wanted.name) from error
    found = sha256_of(pointer)
    if wanted.digest != f"sha256:{found}":
        pointer.resolve().unlink()
        pointer.unlink(missing_ok=True)
        raise DownloadError(f"{wanted.name} has the SHA-256 {found} in place of {wanted.digest[7:]}; it was removed")
    return pointer


def remember_revision(address: HubAddress, commit: str) -> None:
    """Note which commit a branch or tag is, as huggingface_hub does."""
    if not _COMMIT.fullmatch(address.revision):
        ref = repo_folder(address.repo) / "refs" / address.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)


def stored_repos() -> Iterator[str]:
    """The repositories of which something lies here."""
    for folder in sorted(cache_folder().glob(f"{_PREFIX}*--*")):
        yield folder.name.removeprefix(_PREFIX).replace("--", "/", 1)


def unfinished_bytes(repo: str) -> int:
    """Bytes of a repository's files that are not whole yet."""
    return sum(path.stat().st_size for path in (repo_folder(repo) / "blobs").glob(f"*{INCOMPLETE}"))


def remove(repo: str, paths: set[str] | None) -> int:
    """Remove models of a repository from every snapshot, or all that are here; the bytes that are free again."""
    folder = repo_folder(repo)
    before = _n_bytes(folder)
    freed = set()
    for pointer in (folder / "snapshots").glob("*/**/*.gguf"):
        name = "/".join(pointer.relative_to(folder / "snapshots").parts[1:])
        if paths is None or name in paths:
            freed.add(pointer.resolve())
            pointer.unlink()
    if paths is None:
        freed |= {path.resolve() for path in (folder / "blobs").glob(f"*{INCOMPLETE}")}
    kept = [p for p in (folder / "snapshots").glob("*/**/*") if not p.is_dir()]
    for blob in freed - {p.resolve() for p in kept}:
        blob.unlink(missing_ok=True)
    if not kept and folder.exists() and not unfinished_bytes(repo):
        shutil.rmtree(folder)
    return before - _n_bytes(folder)


def _n_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
