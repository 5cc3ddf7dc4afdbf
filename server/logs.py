"""Log lines on standard error: text for people, or one JSON object a line. No prompt is ever part of a record."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

QUIET_PATHS = ("/health", "/v1/health", "/metrics")


class JsonLines(logging.Formatter):
    """A record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
        }
        request = getattr(record, "record", None)
        if request is None:
            line |= {"event": "message", "message": record.getMessage()}
        else:
            line |= {"event": "request", **{key: value for key, value in request.items() if value is not None}}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """A record for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback below it where there is one."""
        request = getattr(record, "record", None)
        text = record.getMessage()
        if request is not None:
            shown = ("seconds", "n_prompt", "n_cached", "n_generated", "tok_per_s", "error", "request_id")
            text += "".join(f" {name}={request[name]}" for name in shown if request.get(name) is not None)
        elif record.levelno >= logging.WARNING:
            text = f"{record.levelname}: {text}"
        text = " ".join(text.split("\n")) if request is not None else text
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    request = getattr(record, "record", None)
    return request is None or request["path"] not in QUIET_PATHS


def log_to_stderr(format: str) -> None:
    """Send the server's records to standard error. Probes are left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    handler.addFilter(_is_worth_a_line)
    log = logging.getLogger("pyggml.server")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
