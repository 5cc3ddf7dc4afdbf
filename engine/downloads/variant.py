"""The models among a repository's files: one variant for each quantisation, of one file or several shards.

Files that are no models (projectors of images, importance matrices and the like) are left out. Labels are read from
names of files and folders, since the hub says nothing else about a file. Pure: no disk, no network.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigError

_MAX_LISTED = 40
# Words in names of GGUF files that no one can talk to; some of them tell only where they come first.
_NO_MODEL = re.compile(
    r"mmproj|imatrix|(?:^|[-_./])(?:control[-_]?vector|cvector|vocab|adapter)(?=[-_.]|$)"
    r"|(?:^|/)(?:mtp|draft|eagle3?|clip|vae)[-_.][^/]*$",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?<![A-Za-z0-9])(?:UD[-_])?(?:I?Q\d(?:_[01K](?:_[01])?)?(?:_(?:XXS|XS|S|M|L|XL|NL|XXL))*(?:_\d_\d)?|TQ[12]_0"
    r"|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_GONE = re.compile(r"Q4_0_\d_\d")  # repacked types that ggml has dropped


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. `digest` is as git or LFS has it: `sha256:…` or `git:…`."""

    path: str
    n_bytes: int
    digest: str


@dataclass(frozen=True)
class Variant:
    """One model: all of its files, the first shard first. `label` is its quantisation, else the file's name."""

    label: str
    files: tuple[RemoteFile, ...]

    @property
    def first(self) -> RemoteFile:
        """The file to open."""
        return self.files[0]

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.n_bytes for file in self.files)


def label_of(path: str) -> str:
    """The quantisation that a path names, in capitals: the file's last such word, else its folder's."""
    for part in reversed(path.split("/")):
        stem = _SHARD.sub(lambda match: match["stem"], part)
        found = _LABEL.findall(stem.removesuffix(".gguf"))
        if found:
            return str(found[-1]).upper().replace("FP16", "F16").replace("FP32", "F32")
    return ""


def shard_paths(path: str) -> list[str]:
    """The paths of all shards of the model that a path is one of; itself alone if it is whole."""
    match = _SHARD.fullmatch(path)
    if match is None:
        return [path]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def variants(files: Iterable[RemoteFile]) -> list[Variant]:
    """The models among files, the largest first. A split model that lacks a shard is none."""
    by_path = {file.path: file for file in files if file.path.lower().endswith(".gguf")}
    found = []
    for path in by_path:
        shards = shard_paths(path)
        if path != shards[0] or _NO_MODEL.search(path) or any(shard not in by_path for shard in shards):
            continue
        label = label_of(path)
        if not _GONE.fullmatch(label):
            found.append(Variant(label or path, tuple(by_path[shard] for shard in shards)))
    return sorted(found, key=lambda variant: (-variant.n_bytes, variant.first.path))


def named(found: Sequence[Variant], choice: str, of: str) -> Variant:
    """The variant that a quantisation or a file's path names.

    Raises ConfigError, with what there is, for none and for several.
    """
    by_file = [v for v in found if any(choice in (f.path, f.path.rpartition("/")[2]) for f in v.files)]
    label = choice.upper()
    by_label = [v for v in found if v.label.upper() == label] or [v for v in found if v.label == f"UD-{label}"]
    fitting = by_file or by_label
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        files = ", ".join(v.first.path for v in fitting)
        raise ConfigError(f"{of} has {len(fitting)} models of {choice}; name the file behind the colon: {files}")
    labels = list(dict.fromkeys(v.label for v in found))
    close = difflib.get_close_matches(label, labels, n=1, cutoff=0.6)
    near = f"; did you mean {close[0]}?" if close else ""
    raise ConfigError(f"{of} has no {choice}{near}; it has {listed(labels)}")


def largest(found: Sequence[Variant], hindrance: Callable[[Variant], str], of: str) -> Variant:
    """The largest variant that is not refused; `hindrance` says why one does not fit, and nothing of one that does.

    Raises ConfigError where none fits, and where the repository has several models of that quantisation.
    """
    if why := hindrance(found[-1]):
        size = f"{found[-1].n_bytes / 2**30:.2f} GiB"
        raise ConfigError(
            f"no model of {of} fits: the smallest is {found[-1].label} with {size}: {why}; name one behind a colon to "
            f"take it all the same: {listed([v.label for v in found])}"
        )
    fitting = next((v for v in found[:-1] if not hindrance(v)), found[-1])
    return named(found, fitting.label, of)


def listed(labels: Sequence[str]) -> str:
    """Names with commas, many of them shortened."""
    more = f", and {len(labels) - _MAX_LISTED} more" if len(labels) > _MAX_LISTED else ""
    return ", ".join(labels[:_MAX_LISTED]) + more
