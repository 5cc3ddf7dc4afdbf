"""Names of models that lie elsewhere: `hf:owner/repo[@revision][:quant]`, and addresses that begin with http.

An address of a file on the hub, as its pages show it, is read as the hub's name for it, so that token, hash and cache
are those of the hub.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from ..errors import ConfigError

_HUB_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
MAIN = "main"
_HUB_FORM = "hf:owner/repo[@revision][:quant], where :quant may also be a file of the repository"
_REPO = r"(?P<repo>\w[\w.-]*/\w[\w.-]*)"
_HUB = re.compile(rf"hf:{_REPO}(?:@(?P<revision>[^:@\s]+))?(?::(?P<choice>\S+))?")
_PAGE = re.compile(rf"/{_REPO}/(?:resolve|blob|raw)/(?P<revision>[^/]+)/(?P<choice>.+\.gguf)")
_REPO_PAGE = re.compile(rf"/{_REPO}(?<!\.gguf)/?(?:tree/(?P<revision>[^/]+)/?)?")
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)


@dataclass(frozen=True)
class HubAddress:
    """A model in a repository of the hub. `choice` is a quantisation, a file, or nothing."""

    repo: str
    revision: str = MAIN
    choice: str = ""

    def __post_init__(self) -> None:
        if ".." in self.revision.split("/") or self.revision.startswith("/"):
            raise ConfigError(f"{self.revision!r} is no revision of {self.repo}")

    def __str__(self) -> str:
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        return f"hf:{self.repo}{revision}" + (f":{self.choice}" if self.choice else "")


@dataclass(frozen=True)
class WebAddress:
    """A file on some server. `sha256` is what its content must have, where the address said so."""

    url: str
    sha256: str = ""

    def __str__(self) -> str:
        """The address without what may be secret in it: user, password and query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


Address = HubAddress | WebAddress


def model_address(name: str) -> Address:
    """The address that a model's name is.

    Raises ConfigError for what begins like an address and is none.
    """
    if name.startswith("hf:"):
        match = _HUB.fullmatch(name)
        if match is None:
            raise ConfigError(f"{name!r} names no model of the hub; the form is {_HUB_FORM}")
        return HubAddress(match["repo"], match["revision"] or MAIN, match["choice"] or "")
    parts = address_parts(name)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{name!r} is no address of a model; it is http://host/path/model.gguf or {_HUB_FORM}")
    if parts.netloc in (*_HUB_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc):
        page = _PAGE.fullmatch(unquote(parts.path)) or _REPO_PAGE.fullmatch(unquote(parts.path))
        if page is not None:
            found = page.groupdict()
            return HubAddress(found["repo"], found["revision"] or MAIN, found.get("choice") or "")
    if not parts.path.lower().endswith(".gguf"):
        raise ConfigError(f"{name!r} names no .gguf file; an address is http://host/path/model.gguf")
    return WebAddress(urlunsplit(parts._replace(fragment="")), _sha256(name, parts.fragment))


def address_parts(name: str) -> SplitResult:
    """The parts of an address. Raises ConfigError for one that cannot be."""
    try:
        parts = urlsplit(name)
        _ = parts.port  # looked at here, since it may be wrong as well
    except ValueError as error:
        raise ConfigError(f"{name!r} is no address: {error}; one is http://host/path/model.gguf") from error
    if "\0" in unquote(name):
        raise ConfigError(f"{name!r} is no address: no file can have %00 in its name")
    return parts


def _sha256(name: str, fragment: str) -> str:
    if not fragment:
        return ""
    match = _SHA256.fullmatch(fragment)
    if match is None:
        raise ConfigError(f"{name!r}: behind # only sha256= and 64 hexadecimal digits may stand")
    return match[1].lower()
