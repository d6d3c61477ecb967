"""TLS contexts of the HTTP and gRPC sockets, made of certificate files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NoReturn

from naiad.config.server.access import TlsFiles
from naiad.core.errors import OptionError

_SHUTDOWN_SECONDS = 1.0
"""How long a connection that is closed here waits for the client's close_notify. The default of event loops is 30 s, in
which a client that keeps an idle connection, and does not look at it, would hold up the end of the server."""


def http_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a socket that serves HTTP/1.1, with TLS 1.2 or newer; OptionError if a file is invalid."""
    return _context(files, "http/1.1")


def grpc_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a socket that serves gRPC, with TLS 1.2 or newer; OptionError if a file is invalid."""
    context = _context(files, "h2")
    # HTTP/2 forbids all other cipher suites of TLS 1.2 (RFC 9113, 9.2.2). This call does not affect those of TLS 1.3.
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    return context


def listening_options(context: ssl.SSLContext | None) -> dict[str, Any]:
    """The arguments for TLS of `create_server` and `connect_accepted_socket`; none without a context."""
    # A dictionary, because asyncio has the second argument only since Python 3.11; uvloop always has it.
    return {} if context is None else {"ssl": context, "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}


def _context(files: TlsFiles, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    for path in (files.certificate, files.key):
        _read(path)  # errors of the context do not name the file
    try:
        context.load_cert_chain(files.certificate, files.key, lambda: _reject_password(files.key))
        if files.root is not None:
            context.load_verify_locations(cadata=_read(files.root).decode("ascii", "replace"))
    except ssl.SSLError as problem:
        raise OptionError(
            f"cannot serve with TLS: {files.certificate}, {files.key} or {files.root}: {problem}"
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED if files.is_mutual else ssl.CERT_NONE
    return context


def _reject_password(key: Path) -> NoReturn:
    # Without a function of ours, OpenSSL asks for the password at the terminal, and the start waits for it.
    raise OptionError(
        f"cannot serve with TLS: {key} is encrypted; write a key without a password: openssl pkey -in {key} -out KEY"
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise OptionError(f"cannot read {path} for TLS: {problem.strerror or problem}") from problem
