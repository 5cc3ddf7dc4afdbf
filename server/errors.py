"""The exceptions of the server, each with the HTTP status and the words that OpenAI's error object has for it.

ApiError
├── BadRequest (400)             the request is wrong
├── NotAllowed (401)             no key, or one that is not known
├── NotFound (404)               no such path, model or stored response
├── TooLarge (413)               the body is over the limit
├── TooMany (429)                the queue is full or a key's cap is reached
├── ServerFault (500)            this request failed although it was right
└── Unavailable (503)            the engine loads, is broken or stops
"""

from __future__ import annotations


class ApiError(Exception):
    """What a client is told. `param` is the field at fault, `code` a word that programs can test."""

    status = 500
    type = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.retry_after_s = message, param, code, retry_after_s


class BadRequest(ApiError):
    """The request is wrong."""

    status, type = 400, "invalid_request_error"


class NotAllowed(ApiError):
    """No key, or one that is not known."""

    status, type = 401, "authentication_error"


class NotFound(ApiError):
    """No such path, model or stored response."""

    status, type = 404, "invalid_request_error"


class TooLarge(ApiError):
    """The body is over the limit."""

    status, type = 413, "invalid_request_error"


class TooMany(ApiError):
    """The queue is full or a key's cap is reached."""

    status, type = 429, "rate_limit_error"


class ServerFault(ApiError):
    """This request failed although nothing was wrong with it."""


class Unavailable(ApiError):
    """The engine loads, is broken or stops."""

    status, type = 503, "unavailable_error"


class StartError(Exception):
    """The server cannot start or go on; the message is for the command line, `status` its exit status."""

    def __init__(self, message: str, *, status: int = 2) -> None:
        super().__init__(message)
        self.status = status
