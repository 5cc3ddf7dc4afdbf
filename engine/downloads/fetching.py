"""From an address to a path on this disk: what lies here is used as it is, anything else is fetched.

Says in single lines on standard error which model it takes and what comes; a bar shows how far it is on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import ConfigError, DownloadError
from ..room import Room
from . import hub, web
from .head import Heads
from .model_address import Address, HubAddress, WebAddress
from .transfer import Wanted, check_disk, transfer
from .variant import Variant, largest, listed, named

Head = Callable[[Variant], contextlib.AbstractContextManager[Path | None]]  # gives a file that opens like the model
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class Fetched:
    """A model on this disk: its files, the first shard first. `n_new_bytes` came just now."""

    address: Address
    label: str
    paths: tuple[Path, ...]
    n_new_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)


def is_offline(asked: bool = False) -> bool:
    """Whether nothing is to be asked of any server: as asked here, or by HF_HUB_OFFLINE."""
    return asked or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def fetch(
    address: Address, room: Callable[[], Room] | None = None, *, offline: bool = False, is_anew: bool = False
) -> Fetched:
    """Give a model that lies here, or fetch it; `is_anew` asks for a newer state of it.

    Without a quantisation the largest that fits `room` is taken. Raises ConfigError for what is not there or not
    allowed, DownloadError for what could not be had.
    """
    offline = is_offline(offline)
    if is_anew and offline:
        raise ConfigError(f"{address} cannot be fetched: --offline or HF_HUB_OFFLINE says to ask no server")
    try:
        return _fetched(address, room, offline, is_anew)
    except OSError as error:  # those of the network are DownloadErrors already
        raise DownloadError(f"{address} cannot be kept: {error.filename or ''}: {error.strerror or error}") from error


def _fetched(address: Address, room: Callable[[], Room] | None, offline: bool, is_anew: bool) -> Fetched:
    if isinstance(address, WebAddress):
        return _from_web(address, offline, is_anew)
    here = hub.stored(address)
    if not is_anew and here and (not address.choice or offline or _has(here, address.choice)):
        variant = _choose(here, address, room, _stored_head, "of those that are here")
        return Fetched(address, variant.label, tuple(hub.stored_path(file) for file in variant.files), 0)
    if offline:
        raise ConfigError(f"{address} is not on this disk, and --offline or HF_HUB_OFFLINE says to ask no server")
    return _from_hub(address, room)


def _has(found: Sequence[Variant], choice: str) -> bool:
    with contextlib.suppress(ConfigError):
        return named(found, choice, "") is not None
    return False


@contextlib.contextmanager
def _stored_head(variant: Variant) -> Iterator[Path | None]:
    yield hub.stored_path(variant.first)


def _choose(
    found: Sequence[Variant], address: HubAddress, room: Callable[[], Room] | None, head: Head, among: str = ""
) -> Variant:
    """The variant that was named, else the largest that fits, which is told."""
    of = str(HubAddress(address.repo, address.revision))
    if address.choice:
        return named(found, address.choice, of)
    if len(found) == 1:
        return found[0]
    limit = None if room is None else room()
    variant = largest(found, lambda v: "" if limit is None else _hindrance(v, limit, head), of)
    where = f" that fits into {limit.text}" if limit else ""
    among = f" {among}" if among else f" of {len(found)}"
    say(
        f"{of}: {variant.label} is taken ({variant.n_bytes / 2**30:.2f} GiB), the largest{among}{where}; "
        f"there are {listed([v.label for v in found])}"
    )
    return variant


def _hindrance(variant: Variant, limit: Room, head: Head) -> str:
    """Why a variant does not fit, by the planner where it can tell, else by its size."""
    if variant.n_bytes > limit.free_bytes:
        return f"there are {limit.text}"
    with head(variant) as path:
        hindrance = None if path is None else limit.hindrance(path)
    if hindrance is None:
        return "" if limit.is_enough(variant.n_bytes) else f"there are {limit.text}, and the context needs some of it"
    return hindrance


def _from_hub(address: HubAddress, room: Callable[[], Room] | None) -> Fetched:
    commit, found = hub.listing(address)
    heads = Heads()

    def head(variant: Variant) -> contextlib.AbstractContextManager[Path | None]:
        return heads.of(hub.wanted_files(address, commit, variant), [file.path for file in variant.files])

    variant = _choose(found, address, room, head)
    wanted = hub.wanted_files(address, commit, variant)
    paths = []
    with _progress(wanted, f"{address.repo}:{variant.label}", hub.cache_folder()) as (progress, n_new_bytes):
        for i, (file, each) in enumerate(zip(variant.files, wanted)):
            paths.append(hub.fetch_file(address, commit, file.path, each, partial(progress, i)))
    hub.remember_revision(address, commit)
    return Fetched(address, variant.label, tuple(paths), n_new_bytes)


def _from_web(address: WebAddress, offline: bool, is_anew: bool) -> Fetched:
    shards = web.shards(address)
    here = [web.place(shard) for shard in shards]
    label = here[0].name
    if not is_anew and all(path.is_file() for path in here):
        web.check_noted(address)
        return Fetched(address, label, tuple(here), 0)
    if offline:
        raise ConfigError(f"{address} is not on this disk, and --offline or HF_HUB_OFFLINE says to ask no server")
    wanted = [web.wanted_file(shard) for shard in shards]
    with _progress(wanted, str(address), web.folder()) as (progress, n_new_bytes):
        for i, each in enumerate(wanted):
            web.fetch_file(each, partial(progress, i))
    return Fetched(address, label, tuple(here), n_new_bytes)


def fetch_to(path: Path, urls: Sequence[str], sha256: str, *, is_model: bool, offline: bool) -> None:
    """Fetch a file to a place of its own, from the first address that gives it.

    Raises ConfigError where no server may be asked, DownloadError with what each address said.
    """
    if is_offline(offline):
        raise ConfigError(f"{path} is not on this disk, and --offline or HF_HUB_OFFLINE says to ask no server")
    reasons = []
    for url in urls:
        try:
            wanted = web.wanted_at(WebAddress(url, sha256), path, is_gguf=is_model)
            with _progress([wanted], wanted.name, path.parent) as (progress, _):
                transfer(wanted, partial(progress, 0))
            return
        except (ConfigError, DownloadError) as error:
            reasons.append(str(error))
        except OSError as error:
            raise DownloadError(f"{path} cannot be kept: {error.strerror or error}") from error
    raise DownloadError(f"{path} could not be fetched: {'; '.join(reasons)}")


@contextlib.contextmanager
def _progress(wanted: Sequence[Wanted], what: str, folder: Path) -> Iterator[tuple[Callable[[int, int], None], int]]:
    """Look for room on the disk, say what comes, and show how far it is; gives what to call, and the bytes to come."""
    n_here = sum(each.n_here for each in wanted)
    total = sum(each.n_bytes or 0 for each in wanted)
    n_new = max(0, total - n_here)
    missing = [each for each in wanted if not each.target.exists()]
    if not missing:
        yield (lambda i, n: None), 0
        return
    check_disk(folder, n_new, what)
    files = "1 file" if len(wanted) == 1 else f"{len(wanted)} files"
    had = f", of which {n_here / 2**20:.1f} MiB are here" if n_here else ""
    size = f"{total / 2**20:.1f} MiB" if total else "of unknown size"
    say(f"fetching {what}: {files}, {size}{had}, into {folder}")
    done = [each.n_here if each.target.exists() else 0 for each in wanted]
    with _bar(total) as show:

        def progress(i: int, n_bytes: int) -> None:
            done[i] = n_bytes
            show(sum(done))

        yield progress, n_new


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    from tqdm import tqdm

    with tqdm(
        total=total or None, desc="fetching", unit="B", unit_scale=True, unit_divisor=1024, leave=False, file=sys.stderr
    ) as bar:
        yield lambda n: bar.update(n - bar.n)


def say(line: str) -> None:
    """Print a line on standard error; names that a server gave move no terminal's cursor."""
    print("".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr, flush=True)
