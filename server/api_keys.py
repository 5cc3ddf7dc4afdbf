"""API keys: who may ask, and how much.

A key file has a key on each line, then what caps it, as in `sk-abc name=ci max_tokens=512 requests_per_minute=60`;
lines that begin with # are comments. Keys are kept as SHA-256 only and compared in constant time. What a key has used
survives a re-read of the file.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import NotAllowed, StartError, TooMany

MINUTE_S = 60.0


@dataclass(frozen=True)
class Caps:
    """The limits of a key; None is none. `max_tokens` and `max_seconds` are of one request."""

    max_tokens: int | None = None
    max_seconds: int | None = None
    max_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


CAP_NAMES = tuple(Caps.__dataclass_fields__)


class Use:
    """What a key has used within the last minute and now."""

    def __init__(self) -> None:
        self.n_open = 0
        self._events: deque[tuple[float, int, int]] = deque()

    def add(self, n_requests: int, n_tokens: int) -> None:
        """Note a request or its tokens."""
        self._events.append((time.monotonic(), n_requests, n_tokens))

    def last_minute(self) -> tuple[int, int, int]:
        """Requests and tokens of the last minute, and in how many seconds some of them will be older."""
        now = time.monotonic()
        while self._events and now - self._events[0][0] >= MINUTE_S:
            self._events.popleft()
        wait = MINUTE_S - (now - self._events[0][0]) if self._events else 0.0
        return sum(e[1] for e in self._events), sum(e[2] for e in self._events), int(wait) + 1


@dataclass(frozen=True)
class Key:
    """A key that may ask; `name` is for logs."""

    digest: bytes
    name: str
    caps: Caps = Caps()
    use: Use = field(default_factory=Use, compare=False)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """A request of this key. Raises TooMany where a cap is reached."""
        n_requests, n_tokens, wait_s = self.use.last_minute()
        caps = self.caps
        for what, used, cap, after_s in (
            ("requests at once", self.use.n_open, caps.max_requests, 1),
            ("requests a minute", n_requests, caps.requests_per_minute, wait_s),
            ("tokens a minute", n_tokens, caps.tokens_per_minute, wait_s),
        ):
            if cap is not None and used >= cap:
                raise TooMany(
                    f"the key {self.name} may have {cap} {what}; it has used {used}",
                    code="rate_limit_exceeded", retry_after_s=after_s,
                )  # fmt: skip
        self.use.add(1, 0)
        self.use.n_open += 1
        try:
            yield
        finally:
            self.use.n_open -= 1


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _read(path: str) -> Iterator[Key]:
    """The keys of a file. Raises StartError naming the line at fault."""
    try:
        lines = Path(path).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--api-key-file {path}: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        caps: dict[str, int] = {}
        name = f"line {number}"
        for word in words[1:]:
            what, _, value = word.partition("=")
            if what == "name" and value:
                name = value
            elif what in CAP_NAMES and value.isdecimal():
                caps[what] = int(value)
            else:
                raise StartError(
                    f"--api-key-file {path}, line {number}: {word!r}; name=TEXT is known, "
                    f"and a whole number of {', '.join(CAP_NAMES)}"
                )
        yield Key(_digest(words[0]), name, Caps(**caps))


class KeyRing:
    """All keys; none means that everybody may ask."""

    def __init__(self, secrets: Iterable[str], path: str | None) -> None:
        self._given = [Key(_digest(secret), f"key {n}") for n, secret in enumerate(secrets, 1)]
        self._path = path
        self._keys: list[Key] = []
        self.read()

    def read(self) -> None:
        """Read the file again. Raises StartError and keeps the keys there were."""
        uses = {key.digest: key.use for key in self._keys}
        found = [*self._given, *(_read(self._path) if self._path else ())]
        self._keys = [replace(key, use=uses.get(key.digest, key.use)) for key in found]

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._given and self._path is None

    def find(self, secret: str | None) -> Key | None:
        """The key of a request, None where none is needed. Raises NotAllowed."""
        if self.is_open:
            return None
        if not secret:
            raise NotAllowed("a key is needed: send it as Authorization: Bearer KEY", code="missing_api_key")
        digest = _digest(secret)
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if not found:
            raise NotAllowed("this API key is not known", code="invalid_api_key")
        return found[0]
