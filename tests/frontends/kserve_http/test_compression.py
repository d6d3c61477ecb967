"""Content codings of requests and responses, and bodies that do not have the stated coding."""

from __future__ import annotations

import gzip
import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.errors import InvalidRequestError, UnsupportedRequestError
from naiad.frontends.decompression import SHORT_INPUT
from naiad.frontends.http1.compression import begin_decompression, compress, preferred_coding

from .raw import infer, request

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def decompress(body, coding, limit):
    decompression = begin_decompression(body, coding, limit)
    if decompression is None:
        return body
    while not decompression.is_complete:
        decompression.step(100_000)
    return decompression.result


@pytest.mark.parametrize("coding", PACK)
def test_request_and_response_may_be_compressed(client, coding):
    body = PACK[coding](infer(*range(500)))
    client.send(request("/v2/models/identity/infer", body, f"Content-Encoding: {coding}", f"Accept-Encoding: {coding}"))
    answer = client.read()
    assert (answer.status, answer.headers["Content-Encoding"]) == (200, coding)
    assert b'"data":[0.0,1.0,2.0' in UNPACK[coding](answer.body)


@pytest.mark.parametrize("coding", PACK)
def test_long_bodies_are_compressed_on_threads_and_in_order(client, coding):
    """The request behind waits, and nothing of it is lost."""
    body = PACK[coding](infer(*range(60_000)))
    assert len(body) > SHORT_INPUT
    long = request("/v2/models/identity/infer", body, f"Content-Encoding: {coding}", f"Accept-Encoding: {coding}")
    client.send(long + request("/v2/models/identity/infer", infer(1)) + long)
    for is_long in (True, False, True):
        answer = client.read()
        assert answer.status == 200
        content = UNPACK[coding](answer.body) if is_long else answer.body
        assert content.count(b",") > 50_000 if is_long else b'"data":[1.0]' in content


def test_bomb_is_refused(client):
    body = gzip.compress(bytes(33 << 20))
    client.send(request("/v2/models/identity/infer", body, "Content-Encoding: gzip"))
    answer = client.read()
    assert answer.status == 400
    assert answer.json() == {"error": "cannot decompress the request body: it exceeds the limit of 33554432 bytes"}


@pytest.mark.parametrize("coding", PACK)
@given(st.binary(max_size=3000), st.integers(0, 2 << 20))
def test_body_comes_back_as_it_was(coding, start, zeros):
    """Also if a piece of output ends with the input: a megabyte of zeros consumes all input while output is still due."""
    body = start + bytes(zeros)  # made here: Hypothesis prints its examples, and warns of megabytes
    assert decompress(compress([body[:10], body[10:]], coding), coding.encode(), 4 << 20) == body
    assert decompress(PACK[coding](body), coding.encode(), len(body)) == body


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("spoil", [lambda body: body[:-1], lambda body: b"x" + body, lambda body: b""])
def test_body_in_another_coding_than_said_is_refused(coding, spoil):
    body = PACK[coding.decode()](os.urandom(5000))
    with pytest.raises(InvalidRequestError, match=f"cannot decompress the request body as {coding.decode()}: "):
        decompress(spoil(body), coding, 1 << 20)


def test_the_name_of_a_coding_has_no_case_and_identity_does_not_compress():
    assert decompress(gzip.compress(b"a"), b" GZIP ", 10) == b"a"
    assert decompress(b"a", b"identity", 10) == decompress(b"a", b"", 10) == b"a"
    with pytest.raises(UnsupportedRequestError, match="Unsupported compression type"):
        decompress(b"a", b"gzip, gzip", 10)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"", "identity"),
        (b"gzip", "gzip"),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"gzip;q=0, deflate;q=0", "identity"),
        (b"br, zstd", "identity"),
        (b"br;q=1, gzip;q=0.1", "gzip"),
        (b"identity, gzip", "identity"),
        (b"*", "gzip"),
        (b"gzip;q=nonsense", "identity"),
        (b"gzip;q=nan,deflate", "deflate"),
        (b" ,;,q=1,\xff", "identity"),
    ],
)
def test_response_has_the_coding_the_client_likes_best(accepted, coding):
    assert preferred_coding(accepted) == coding
