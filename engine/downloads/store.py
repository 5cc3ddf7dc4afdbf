"""The fetched models on this disk, and what a repository of the hub offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from . import hub, web
from .fetching import is_offline
from .model_address import Address, HubAddress, WebAddress
from .transfer import INCOMPLETE
from .variant import Variant, named, shard_paths


@dataclass(frozen=True)
class Stored:
    """A model on this disk under the name that gives it. `path` is its first file, None where it is not whole."""

    name: str
    n_bytes: int
    n_files: int
    path: Path | None


@dataclass(frozen=True)
class Offered:
    """A model of a repository."""

    name: str
    n_bytes: int
    n_files: int
    is_here: bool


def stored_models() -> list[Stored]:
    """Everything that lies here, whole or not, by name."""
    found = []
    for repo in hub.stored_repos():
        here = hub.stored(HubAddress(repo))
        names = _names(HubAddress(repo), here)
        found += [Stored(n, v.n_bytes, len(v.files), hub.stored_path(v.first)) for n, v in zip(names, here)]
        if unfinished := hub.unfinished_bytes(repo):
            found.append(Stored(str(HubAddress(repo)), unfinished, 0, None))
    return sorted(found + _from_web(), key=lambda each: each.name)


def _from_web() -> list[Stored]:
    found = []
    for path in web.stored_files():
        whole = path.with_name(path.name.removesuffix(INCOMPLETE))
        shards = [whole.with_name(name) for name in shard_paths(whole.name)]
        if whole != shards[0]:
            continue
        is_whole = all(shard.is_file() for shard in shards)
        lying = [p for shard in shards for p in (shard, shard.with_name(shard.name + INCOMPLETE)) if p.is_file()]
        name = str(web.note(whole).get("url") or whole)
        found.append(Stored(name, sum(p.stat().st_size for p in lying), len(lying), whole if is_whole else None))
    return found


def offered_models(address: HubAddress, *, offline: bool = False) -> list[Offered]:
    """What a repository has, the largest first; raises ConfigError and DownloadError as hub.listing()."""
    if is_offline(offline):
        raise ConfigError(f"{address} cannot be looked at: --offline or HF_HUB_OFFLINE says to ask no server")
    _, found = hub.listing(address)
    here = {v.first.path for v in hub.stored(address)}
    names = _names(HubAddress(address.repo, address.revision), found)
    return [Offered(n, v.n_bytes, len(v.files), v.first.path in here) for n, v in zip(names, found)]


def _names(repo: HubAddress, found: Sequence[Variant]) -> list[str]:
    """What names each variant: its quantisation where that is its only one, else its file."""
    counts = Counter(v.label for v in found)
    return [f"{repo}:{v.label if counts[v.label] == 1 else v.first.path}" for v in found]


def remove(address: Address) -> int:
    """Remove a model, or all models of a repository; the bytes that are free again.

    Raises ConfigError where nothing of it lies here.
    """
    if isinstance(address, WebAddress):
        n_bytes = web.remove(address)
    elif address.choice:
        here = hub.stored(address)
        if not here:
            raise ConfigError(f"{address} is not on this disk; pyggml list shows what is")
        variant = named(here, address.choice, f"{HubAddress(address.repo, address.revision)} on this disk")
        return hub.remove(address.repo, {file.path for file in variant.files})
    else:
        n_bytes = hub.remove(address.repo, None)
    if not n_bytes:
        raise ConfigError(f"{address} is not on this disk; pyggml list shows what is")
    return n_bytes
