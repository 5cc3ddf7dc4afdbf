"""The address that a server listens on, taken before anything else is done."""

from __future__ import annotations

import errno
import socket

from .errors import StartError

BACKLOG = 512


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises StartError naming the port."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError, UnicodeError) as error:
        raise StartError(f"--host {host} --port {port}: {error}") from error
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} of {host} is taken by another program; --port takes another one, 0 any free one"
            ) from error
        raise StartError(f"--host {host} --port {port}: {error.strerror or error}") from error
    bound.setblocking(False)
    return bound
