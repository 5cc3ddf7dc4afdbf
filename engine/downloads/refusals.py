"""What a server's refusal means: mistakes in what was asked apart from failures on the way."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, DownloadError, EngineError

_TOKEN = "set HF_TOKEN to a token that may read it"


def explained(error: Any, what: str) -> EngineError:
    """Our error for an HTTP error of huggingface_hub about `what`."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, GatedRepoError):
        return ConfigError(f"{what} is gated: ask for access on its page of the hub, and {_TOKEN}")
    if isinstance(error, RevisionNotFoundError):
        return ConfigError(f"{what} has no such revision")
    if isinstance(error, RepositoryNotFoundError):
        return ConfigError(f"{what} is not there, or is private; if it is private, {_TOKEN}")
    if status in (401, 403):
        return ConfigError(f"{what} may not be read (status {status}); if it is private, {_TOKEN}")
    if status in (404, 410):
        return ConfigError(f"{what} is not there (status {status})")
    if status is not None:
        return DownloadError(f"{what} cannot be had now: the server answers with status {status}")
    return DownloadError(f"{what} cannot be had now: {error}")
