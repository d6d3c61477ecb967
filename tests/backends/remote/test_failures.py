"""What becomes of calls whose target fails: texts, retries, breakers. The targets are scripted, on real sockets."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import ipaddress
import itertools
import random
import socket
import ssl
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from naiad_remote.caller import Caller
from naiad_remote.errors import CallError, Cause
from naiad_remote.metrics import Metrics
from naiad_remote.settings import read
from naiad_remote.shadow import Shadow
from naiad_remote.watch import Watch
from naiad_remote.wire import WireRequest, WireResponse, WireTensor
from support.server import free_ports
from support.waiting import until

from .scripted import ScriptedTarget, answer, scripted

REQUEST = WireRequest("", [WireTensor("X", "INT32", (1,), [b"\1\0\0\0"])], ["Y"], {}, [("x-user", "Ada")])
REFUSED = "connection refused"


class Calls:
    """Calls targets as a model with these parameters does."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.is_ready = caller.is_ready

    def __call__(self, **options: object) -> list[WireResponse]:
        return list(self._caller.call(REQUEST, **{"clients": [], **options}))

    def of(self, request: WireRequest) -> Iterator[WireResponse]:
        return self._caller.call(request, clients=[])

    def error(self, **options: object) -> CallError:
        with pytest.raises(CallError) as error:
            self(**options)
        return error.value


@contextlib.contextmanager
def calls_of(
    *urls: str, directory: Path | None = None, numbers: Iterator[float] | None = None, **values: str
) -> Iterator[Calls]:
    parameters = {"url": ",".join(urls), "breaker_failures": "0", "retries": "0", **values}
    config = {"name": "m", "parameters": {name: {"string_value": text} for name, text in parameters.items()}}
    given = read(config, str((directory or Path("/m")) / "1"))
    watch = Watch()
    caller = Caller(
        given,
        given.targets,
        given.weights,
        watch=watch,
        metrics=Metrics("m", "1", "m_0"),
        kind="primary",
        is_decoupled=False,
        random=random.Random(3).random if numbers is None else lambda: next(numbers),
    )
    try:
        yield Calls(caller)
    finally:
        caller.close()
        watch.close()


def url(target: ScriptedTarget, scheme: str = "http") -> str:
    return f"{scheme}://{target.address}"


def lose(connection: socket.socket, request: bytes) -> bool:
    return False


def good(connection: socket.socket, request: bytes) -> bool:
    return answer(connection)


def busy(connection: socket.socket, request: bytes) -> bool:
    return answer(connection, 503, {"error": "the queue is full"})


def never(connection: socket.socket, request: bytes) -> bool:
    return connection.recv(1) != b""  # until the caller closes the connection


# -- texts ------------------------------------------------------------------------------------------------------


def test_a_refused_connection_is_one_sentence():
    (port,) = free_ports(1)
    for scheme in ("http", "grpc"):
        with calls_of(f"{scheme}://127.0.0.1:{port}") as calls:
            error = calls.error()

        assert error.cause is Cause.CONNECT
        assert error.text.startswith(f"cannot call {scheme}://127.0.0.1:{port}/v2/models/m: ")
        assert REFUSED in error.text.lower()


def test_an_unknown_host_is_one_sentence():
    with calls_of("http://nowhere.invalid:8000") as calls:
        error = calls.error()

    assert error.text.startswith("cannot call http://nowhere.invalid:8000/v2/models/m: ")
    assert error.cause is Cause.CONNECT


def test_no_response_within_the_time_limit_is_one_sentence():
    with scripted(never) as target, calls_of(url(target), timeout_seconds="0.2") as calls:
        error = calls.error()

    assert error.text == f"cannot call {url(target)}/v2/models/m: no response within 0.2 s"
    assert (error.cause, error.code) == (Cause.TIMEOUT, "UNAVAILABLE")


def test_a_target_that_trickles_is_ended_by_the_limit_as_well():
    def trickle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in itertools.count():
                connection.sendall(b"x")
                connection.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        return False

    with scripted(trickle) as target, calls_of(url(target), timeout_seconds="0.2") as calls:
        assert calls.error().cause is Cause.TIMEOUT


def test_a_lost_connection_is_one_sentence():
    def in_the_middle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        return False

    with scripted(lose, in_the_middle) as target, calls_of(url(target)) as calls:
        start = f"cannot call {url(target)}/v2/models/m: the connection was lost"
        assert calls.error().text == f"{start}: the target closed it without a response"
        assert calls.error().text == f"{start} in the middle of the response"


def test_a_malformed_response_is_one_sentence():
    def other(connection: socket.socket, request: bytes) -> bool:
        return answer(connection, 200, b"<html>")

    with scripted(other) as target, calls_of(url(target)) as calls:
        error = calls.error()

    assert error.text.startswith(f"cannot call {url(target)}/v2/models/m: its response is malformed: ")
    assert (error.cause, error.code) == (Cause.MALFORMED, "INTERNAL")


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "INVALID_ARG"), (404, "NOT_FOUND"), (500, "INTERNAL"), (501, "UNSUPPORTED"), (503, "UNAVAILABLE")],
)
def test_a_status_and_its_text_are_kept(status, code):
    def rejecting(connection: socket.socket, request: bytes) -> bool:
        return answer(connection, status, {"error": "no, thanks"})

    with scripted(rejecting) as target, calls_of(url(target)) as calls:
        error = calls.error()

    assert (error.text, error.code) == (f"no, thanks (from {url(target)}/v2/models/m)", code)


# -- connections ------------------------------------------------------------------------------------------------


def test_a_connection_is_used_again_until_the_target_closes_it():
    def closing(connection: socket.socket, request: bytes) -> bool:
        return answer(connection, close=True)

    with scripted(good, good, closing, good) as target, calls_of(url(target)) as calls:
        for _ in range(5):
            assert calls() == [WireResponse([], {})]

        assert target.connections == 2
        assert all(b"\r\nx-user: Ada\r\n" in request for request in target.requests)


def test_a_connection_that_the_target_closed_while_idle_is_not_used():
    closed = threading.Event()

    def closing(connection: socket.socket, request: bytes) -> bool:
        answer(connection)  # without saying so
        connection.shutdown(socket.SHUT_RDWR)
        closed.set()
        return False

    with scripted(closing, good) as target, calls_of(url(target)) as calls:
        calls()
        assert closed.wait(30)
        calls()

        assert target.connections == 2


def test_a_client_that_disconnects_ends_the_connection():
    ended = threading.Event()

    def waiting(connection: socket.socket, request: bytes) -> bool:
        begun.set()
        if not connection.recv(1):
            ended.set()
        return False

    begun = threading.Event()
    with scripted(waiting) as target, calls_of(url(target)) as calls:
        error = calls.error(clients=[begun.is_set])
        assert ended.wait(30)

    assert (error.cause, error.code, error.text) == (Cause.CANCELLED, "CANCELLED", "Request was cancelled")


# -- retries ----------------------------------------------------------------------------------------------------


def test_a_refused_connection_is_retried_at_another_target():
    (port,) = free_ports(1)
    with scripted(good) as target, calls_of(f"http://127.0.0.1:{port}", url(target), retries="1") as calls:
        for _ in range(10):
            calls()

    assert len(target.requests) == 10


@pytest.mark.parametrize("handler", [lose, busy])
def test_a_request_that_may_have_been_executed_is_retried_only_if_idempotent(handler):
    with scripted(handler, good) as target:
        with calls_of(url(target), retries="1") as calls:
            calls.error()
        assert len(target.requests) == 1
    with scripted(handler, good) as target:
        with calls_of(url(target), retries="1", idempotent="true") as calls:
            calls()
        assert len(target.requests) == 2


def test_retries_are_bounded():
    with scripted(busy) as target, calls_of(url(target), retries="3", idempotent="true") as calls:
        assert calls.error().text == f"the queue is full (from {url(target)}/v2/models/m)"

    assert len(target.requests) == 4


# -- weights and breakers ---------------------------------------------------------------------------------------


# -- copies -----------------------------------------------------------------------------------------------------


def test_copies_are_bounded_and_further_ones_are_dropped():
    with scripted(never) as target:
        config = {"name": "m", "parameters": {"url": {"string_value": url(target)}}}
        given = read(config, "/m/1")
        watch = Watch()
        caller = Caller(
            given,
            given.targets,
            watch=watch,
            metrics=Metrics("m", "1", "m_0"),
            kind="shadow",
            is_decoupled=False,
            random=random.random,
        )
        dropped = []
        caller.metrics[0].on_dropped = lambda: dropped.append(1)
        shadow = Shadow(caller, 1.0, 2, random.random)
        for _ in range(5):
            shadow.offer(REQUEST)  # returns at once
        until(lambda: len(target.requests) == 2, "the copies to arrive")
        assert len(dropped) == 3
        target.close()
        shadow.close()
        watch.close()


def test_a_share_of_the_requests_is_copied():
    with scripted(good) as target, calls_of(url(target)) as calls:
        numbers = iter([number / 100 for number in range(100)])
        shadow = Shadow(calls._caller, 0.25, 100, lambda: next(numbers))
        for _ in range(100):
            shadow.offer(REQUEST)
        shadow.close()

    assert len(target.requests) == 25


# -- TLS --------------------------------------------------------------------------------------------------------


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._folder = folder
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._sign(self._name, self._key.public_key(), is_authority=True))

    def issue(self, name: str, *alternatives: x509.GeneralName, is_strict: bool = True) -> tuple[Path, Path]:
        """A certificate, and its key; as RFC 5280 requires it, or without the Authority Key Identifier."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(self._sign(subject, key.public_key(), *alternatives, is_strict=is_strict))
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(*form))
        return certificate, key_path

    def _sign(
        self,
        subject: x509.Name,
        key: object,
        *names: x509.GeneralName,
        is_authority: bool = False,
        is_strict: bool = True,
    ) -> bytes:
        now = dt.datetime.now(dt.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if is_strict:
            identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(identifier, critical=False)
        if is_authority:
            identifier = x509.SubjectKeyIdentifier.from_public_key(key)
            builder = builder.add_extension(identifier, critical=False)
            usage = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment"), False)
            usage |= dict.fromkeys(("data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False)
            builder = builder.add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_tls_with_an_authority_a_client_certificate_and_a_server_name(tmp_path):
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server", x509.DNSName("models.test"))
    own, own_key = authority.issue("client", x509.DNSName("client"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    names = {"tls_ca": authority.path.name, "tls_certificate": own.name, "tls_key": own_key.name}

    with scripted(good, context=context) as target:
        address = url(target, "https")
        with calls_of(address, directory=tmp_path, **names, tls_server_name="models.test") as calls:
            calls()
            calls()
        assert target.connections == 1
        start = f"cannot call {address}/v2/models/m: TLS failed: "
        with calls_of(address, directory=tmp_path, **names) as calls:
            error = calls.error()
            assert error.cause is Cause.TLS
            assert error.text.startswith(f"{start}certificate verify failed: IP address mismatch")
            assert error.text.endswith("; see tls_ca, tls_certificate and tls_server_name")
        with calls_of(address, directory=tmp_path, tls_server_name="models.test") as calls:
            assert calls.error().text.startswith(f"{start}certificate verify failed: ")
        without = {"tls_ca": authority.path.name, "tls_server_name": "models.test"}
        with calls_of(address, directory=tmp_path, **without) as calls:
            assert calls.error().cause in {Cause.TLS, Cause.LOST}


def test_an_error_names_what_a_certificate_lacks_for_strict_pythons(tmp_path, monkeypatch):
    """Python 3.13 and newer reject certificates of private authorities that older ones accept."""
    create = ssl.create_default_context

    def strict(**options):
        context = create(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server", x509.DNSName("models.test"), is_strict=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    with scripted(good, context=context) as target:
        names = {"tls_ca": authority.path.name, "tls_server_name": "models.test"}
        with calls_of(url(target, "https"), directory=tmp_path, **names) as calls:
            error = calls.error()

    assert error.cause is Cause.TLS
    assert "certificate verify failed: Missing Authority Key Identifier (issue the certificate again as" in error.text


def test_tls_to_a_server_without_it_is_one_sentence():
    with scripted(good) as target:
        target_url = url(target, "https")
        with calls_of(target_url, connect_timeout_seconds="0.3") as calls:
            error = calls.error()

    assert error.cause is Cause.TLS
    assert error.text.startswith(f"cannot call {target_url}/v2/models/m: TLS failed: ")


@pytest.mark.server
def test_grpc_checks_the_certificate(tmp_path, secure_server):
    address, authority = secure_server
    ca = {"directory": authority.parent, "tls_ca": authority.name}
    with calls_of(f"grpcs://{address}", **ca, connect_timeout_seconds="5") as calls:
        error = calls.error()
        assert (error.code, error.cause) == ("NOT_FOUND", Cause.ERROR), error.text  # it has no model 'm', and said so
    with calls_of(f"grpcs://{address}", **ca, connect_timeout_seconds="5", tls_server_name="other.test") as calls:
        assert calls.error().cause is Cause.TLS
    with calls_of(f"grpcs://{address}", connect_timeout_seconds="5") as calls:
        error = calls.error()
    assert error.cause is Cause.TLS
    assert error.text.endswith("; see tls_ca, tls_certificate and tls_server_name")


@pytest.fixture(scope="module")
def secure_server(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The gRPC address of a server with TLS and no model, and its authority."""
    from support.server import ServerProcess

    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "ca")
    certificate, key = authority.issue("server", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    (folder / "repository").mkdir()
    options = ("--grpc-use-ssl=true", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}")
    with ServerProcess(folder / "repository", *options, work=folder / "work") as server:
        yield server.grpc_url, authority.path


def announce_much(connection: socket.socket, _: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5000000000\r\n\r\n{")
    return True


def send_without_end(connection: socket.socket, _: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def send_half(connection: socket.socket, _: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 8000000\r\n\r\n" + b" " * 4_000_000)
    return False


def send_half_in_chunks(connection: socket.socket, _: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3d0900\r\n" + b" " * 4_000_000)
    return False


@pytest.mark.parametrize("handler", [announce_much, send_without_end])
def test_a_response_that_is_too_long_is_an_error_and_says_nothing_about_the_target(handler):
    with scripted(handler) as target, calls_of(url(target), max_response_mib="2", breaker_failures="1") as call:
        error = call.error()

        assert error.text == (
            f"cannot call {url(target)}/v2/models/m: its response has more than 2097152 bytes; ask it for fewer outputs, "
            "or raise the parameter 'max_response_mib'"
        )
        assert (error.cause, error.code) == (Cause.ERROR, "INTERNAL")
        assert call.is_ready()


def test_a_response_that_never_ends_is_ended_by_the_time_limit():
    with scripted(send_without_end) as target, calls_of(url(target), timeout_seconds="0.3") as call:
        error = call.error()

    assert error.text == f"cannot call {url(target)}/v2/models/m: no response within 0.3 s"
    assert error.cause is Cause.TIMEOUT


@pytest.mark.parametrize(
    ("head", "body", "problem"),
    [
        ("inference-header-content-length: 1_0\r\n", b'{"outputs": []}',
         "its header inference-header-content-length is '1_0', and its body has 15 bytes"),
        ("inference-header-content-length: -5\r\n", b'{"outputs": []}', "is '-5', and its body has 15 bytes"),
        ("inference-header-content-length: 16\r\n", b'{"outputs": []}', "is '16', and its body has 15 bytes"),
        ("", b'{"outputs": [{"name": "Y", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": -1}}]}',
         "output 'Y' has the binary_data_size -1"),
        ("", b"[" * 100_000, "recursion"),
    ],
)  # fmt: skip
def test_a_response_with_impossible_sizes_or_depth_is_malformed(head, body, problem):
    def send(connection: socket.socket, _: bytes) -> bool:
        connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n{head}\r\n".encode() + body)
        return True

    with scripted(send) as target, calls_of(url(target)) as call:
        error = call.error()

    assert error.cause is Cause.MALFORMED
    assert problem in error.text


@pytest.mark.parametrize("handler", [send_half, send_half_in_chunks, send_without_end])
def test_a_failed_call_keeps_nothing_of_what_it_received(handler):
    with scripted(handler) as target, calls_of(url(target), max_response_mib="8", retries="0") as call:
        call.error()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(10):
                call.error()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()

    assert kept < 2_000_000  # of 40 MB or more


def test_a_failed_call_leaves_no_cycle_that_keeps_its_request():
    request = REQUEST.copy()
    kept = weakref.ref(request)
    with scripted(lose) as target, calls_of(url(target)) as call:
        gc.disable()
        try:
            with contextlib.suppress(CallError):
                list(call.of(request))
            del request
            assert kept() is None
        finally:
            gc.enable()
