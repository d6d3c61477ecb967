"""TLS of both frontends, with and without client certificates. The certificates are created here."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import gevent.ssl
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from cli.parsing import parse_options
from fakes.engine import FakeEngine
from geventhttpclient.response import HTTPConnectionClosed
from serving.written import write_model
from support.server import ServerProcess
from support.system_packages import needs
from support.waiting import until
from tritonclient.utils import InferenceServerException

from naiad.cli.http_reading import ServerAddress, UnreachableServerError
from naiad.config.server.access import TlsFiles
from naiad.config.server.flag import UsageError
from naiad.core.errors import OptionError
from naiad.frontends.extensions import Extensions
from naiad.frontends.http2 import frames
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.frontends.tls import grpc_context, http_context

pytestmark = needs("openssl")


@pytest.fixture(scope="module")
def certificates(work):
    """A root certificate, and two certificates signed by it: `server` for this machine, and `client`."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=work, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # Key usage: Python 3.13 and newer reject a root certificate without it.
    root = ("-keyout", "root.key", "-out", "root.crt", "-subj", "/CN=root", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", *key, *root, "-days", "2")
    (work / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "root.crt", "-CAkey", "root.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
    return work


def files(place, *, is_mutual=False):
    return TlsFiles(
        certificate=place / "server.crt",
        key=place / "server.key",
        root=place / "root.crt" if is_mutual else None,
        is_mutual=is_mutual,
    )


@pytest.fixture
def served(serve, certificates):
    def start(**options):
        tls = {"tls": files(certificates, **options)}
        return serve(Extensions(), for_http=tls, for_grpc=tls)

    return start


@pytest.fixture
def client_of(protocol, certificates):
    """Creates a client that trusts the root, optionally with a client certificate."""
    with contextlib.ExitStack() as stack:

        def make(both, *, is_known=False):
            root, pair = certificates / "root.crt", (certificates / "client.crt", certificates / "client.key")
            if protocol == "grpc":
                key, chain = (pair[1], pair[0]) if is_known else (None, None)
                client = tritonclient.grpc.InferenceServerClient(
                    f"127.0.0.1:{both.grpc_port}",
                    ssl=True,
                    root_certificates=str(root),
                    private_key=key and str(key),
                    certificate_chain=chain and str(chain),
                )
            else:

                def context():
                    made = gevent.ssl.create_default_context(cafile=root)
                    if is_known:
                        made.load_cert_chain(*pair)
                    return made

                client = tritonclient.http.InferenceServerClient(
                    f"127.0.0.1:{both.http_port}", ssl=True, ssl_context_factory=context
                )
            return stack.enter_context(contextlib.closing(client))

        yield make


def infer(client, api, size=4):
    tensor = api.InferInput("INPUT0", [size], "FP32")
    data = np.arange(size, dtype=np.float32)
    tensor.set_data_from_numpy(data)
    np.testing.assert_array_equal(client.infer("identity", [tensor]).as_numpy("OUTPUT0"), data)


@pytest.fixture
def environ(monkeypatch):
    """Environment variables, as a new process finds them: `urlopen` keeps the certificates of its first call."""
    monkeypatch.setattr(urllib.request, "_opener", None)
    return monkeypatch


def test_commands_say_how_to_trust_a_certificate(served, certificates, environ):
    server = ServerAddress(f"https://localhost:{served().http_port}")
    environ.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(UnreachableServerError, match=r"with the environment variable SSL_CERT_FILE$"):
        server.text("/v2/health/live")
    environ.setattr(urllib.request, "_opener", None)
    environ.setenv("SSL_CERT_FILE", str(certificates / "root.crt"))
    assert server.text("/v2/health/live") == ""


def test_commands_name_what_a_certificate_lacks_for_strict_pythons(monkeypatch):
    """Python 3.13 and newer reject certificates of private authorities that older ones accept."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: Missing Authority Key Identifier")
    error.verify_code = 85  # X509_V_ERR_MISSING_AUTHORITY_KEY_IDENTIFIER

    def urlopen(*_arguments, **_options):
        raise urllib.error.URLError(error)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(UnreachableServerError, match=r"missing authority key identifier; issue the certificate again"):
        ServerAddress("https://localhost:1").text("/v2/health/live")


def test_commands_say_that_a_port_has_no_tls(serve):
    server = ServerAddress(f"https://localhost:{serve(Extensions()).http_port}")
    with pytest.raises(UnreachableServerError, match=r"; name the address of a port with TLS, or write http://$"):
        server.text("/v2/health/live")


@pytest.mark.parametrize("size", [4, 1 << 20])
def test_tensors_travel_encrypted(served, client_of, api, size):
    infer(client_of(served()), api, size)


def test_a_server_can_ask_for_clients_certificates(served, client_of, api):
    both = served(is_mutual=True)
    infer(client_of(both, is_known=True), api)
    with pytest.raises((InferenceServerException, ssl.SSLError, ConnectionError, HTTPConnectionClosed)):
        infer(client_of(both), api)


def connected(both, certificates, *protocols):
    """A socket to gRPC's port that offers these by ALPN."""
    context = ssl.create_default_context(cafile=certificates / "root.crt")
    if protocols:
        context.set_alpn_protocols(protocols)
    plain = socket.create_connection(("127.0.0.1", both.grpc_port), timeout=60)
    return context.wrap_socket(plain, server_hostname="localhost")


def test_a_client_that_does_not_look_at_its_connection_does_not_hold_up_the_end(certificates, loop):
    """It sends no close_notify; the loop would wait for that for 30 s."""
    frontend = HttpFrontend(FakeEngine(), address="127.0.0.1", port=0, tls=files(certificates))
    port = loop.run(frontend.start())
    context = ssl.create_default_context(cafile=certificates / "root.crt")
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    with context.wrap_socket(plain, server_hostname="localhost") as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        loop.run(frontend.stop(60), timeout=25)


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
def test_a_client_that_does_not_offer_h2_is_told_so_in_http_1(served, certificates, protocols):
    with connected(served(), certificates, *protocols) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 400
        assert b"with TLS, clients must offer h2 by ALPN" in answer.read()
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # the connection ends without TLS's close_notify
            assert not client.recv(1)


def test_h2_is_chosen_among_others(served, certificates):
    with connected(served(), certificates, "http/1.1", "h2") as client:
        assert client.selected_alpn_protocol() == "h2"
        client.sendall(frames.PREFACE + frames.settings(()) + frames.ping(b"12345678"))
        received = b""
        while b"12345678" not in received:
            received += client.recv(1 << 16)


def test_a_client_without_tls_gets_no_response(served):
    with pytest.raises((ConnectionError, OSError)):
        served().http("GET", "/v2/health/live")


@pytest.mark.parametrize("make", [http_context, grpc_context])
def test_files_that_cannot_be_used_are_named(make, certificates, tmp_path):
    missing = TlsFiles(certificate=tmp_path / "no.crt", key=certificates / "server.key")
    with pytest.raises(OptionError, match=r"cannot read .*no\.crt for TLS: No such file or directory"):
        make(missing)
    other = TlsFiles(certificate=certificates / "server.crt", key=certificates / "client.key")
    with pytest.raises(OptionError, match=r"cannot serve with TLS: .*server\.crt, .*client\.key or None: .*mismatch"):
        make(other)


@pytest.mark.parametrize("make", [http_context, grpc_context])
def test_an_encrypted_key_is_rejected_without_asking_for_its_password(make, certificates, tmp_path):
    key = tmp_path / "encrypted.key"
    encrypt = ["openssl", "pkey", "-aes128", "-passout", "pass:secret", "-in", certificates / "server.key", "-out", key]
    subprocess.run(encrypt, check=True)
    with pytest.raises(OptionError) as caught:
        make(TlsFiles(certificate=certificates / "server.crt", key=key))
    assert caught.value.message == (
        f"cannot serve with TLS: {key} is encrypted; write a key without a password: openssl pkey -in {key} -out KEY"
    )


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_files_that_cannot_be_used_are_named_before_models_are_loaded(certificates, tmp_path, service):
    write_model(tmp_path / "models", "any")
    named = (f"--{service}-server-cert={tmp_path / 'no.crt'}", f"--{service}-server-key={certificates / 'server.key'}")
    with ServerProcess(tmp_path / "models", f"--{service}-use-ssl=true", *named, work=tmp_path, wait="") as server:
        assert server.wait_exit() == 1
        assert f"cannot read {tmp_path / 'no.crt'} for TLS: No such file or directory" in server.log
        assert "loading: " not in server.log


def options_of(*flags):
    return parse_options(["--model-repository=/m", *flags], environ={})


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_flags_name_the_files(service):
    named = [f"--{service}-server-cert=/c", f"--{service}-server-key=/k", f"--{service}-root-cert=/r"]
    assert getattr(options_of(*named), service).tls is None
    tls = getattr(options_of(f"--{service}-use-ssl=true", *named), service).tls
    assert (str(tls.certificate), str(tls.key), str(tls.root), tls.is_mutual) == ("/c", "/k", "/r", False)
    assert getattr(options_of(f"--{service}-use-ssl-mutual=true", *named), service).tls.is_mutual
    for asked, lacking in (("use-ssl", named[0]), ("use-ssl", named[1]), ("use-ssl-mutual", named[2])):
        given = [flag for flag in named if flag != lacking]
        with pytest.raises(UsageError) as caught:
            options_of(f"--{service}-{asked}=true", *given)
        assert f"--{service}-{asked} needs {lacking.partition('=')[0]}, the file of it" in caught.value.message


def test_a_long_response_waits_for_a_client_that_reads_later(serve, certificates):
    """It counts in the memory of requests until then; the connection serves another request behind it."""
    extensions = Extensions()
    budget = extensions.memory.budget
    both = serve(extensions, for_http={"tls": files(certificates)})
    size = 32 << 20
    context = ssl.create_default_context(cafile=str(certificates / "root.crt"))
    with context.wrap_socket(
        socket.create_connection(("127.0.0.1", both.http_port)), server_hostname="localhost"
    ) as connection:
        for _ in range(2):
            head = "POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: "
            given = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{size // 4}],"parameters":{{"binary_data_size":{size}}}}}],'
            given += '"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
            connection.sendall(f"{head}{len(given)}\r\nContent-Length: {len(given) + size}\r\n\r\n{given}".encode())
            connection.sendall(bytes(size))
            until(lambda: budget.unread.size > size, "the response to wait")
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.read().endswith(bytes(size))
            until(lambda: not budget.in_use, "it to be sent")
