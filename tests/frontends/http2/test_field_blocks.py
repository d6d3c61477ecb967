"""Field blocks: repeated ones are decoded once, constant ones have constant bytes, and hpack agrees with both."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naiad.frontends.http2.field_blocks import FieldBlockDecoder, FieldBlockEncoder, changes_table
from naiad.frontends.http2.frames import Http2ConnectionError

NAMES = st.sampled_from([b"a", b"b", b"content-type", b":status", b"long-name-" * 20])
VALUES = st.binary(max_size=200) | st.sampled_from([b"", b"200", b"x" * 5000])
FIELDS = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=5)


def plain(fields):
    return tuple((bytes(name), bytes(value)) for name, value in fields)


@given(st.lists(st.tuples(FIELDS, st.booleans()), max_size=12))
def test_repeated_blocks_mean_what_hpack_decodes(blocks):
    encoder, plain_decoder = hpack.Encoder(), hpack.Decoder(max_header_list_size=1 << 20)
    reader = FieldBlockDecoder(lambda fields: fields, 1 << 20)
    for fields, sensitive in blocks:
        for _ in range(3):
            block = encoder.encode([(*field, sensitive) for field in fields])
            assert reader.read(block) == plain(plain_decoder.decode(block, raw=True))


def test_a_repeated_block_is_parsed_once():
    encoder, seen = hpack.Encoder(), []
    reader = FieldBlockDecoder(lambda fields: seen.append(fields) or len(seen), 1 << 16)
    fields = [(":method", "POST"), ("x", "y")]
    results = [reader.read(encoder.encode(fields)) for _ in range(5)]
    assert results == [1, 2, 2, 2, 2]
    reader.read(encoder.encode([("new", "field")]))
    moved = encoder.encode(fields)
    assert [reader.read(moved), reader.read(moved)] == [4, 4]
    assert seen[3] == plain([(b":method", b"POST"), (b"x", b"y")])


@pytest.mark.parametrize(
    ("block", "changes"),
    [
        (b"\x82\x86", False),
        (b"\xff\x80\x01", False),
        (b"\x00\x01a\x01b\x82", False),
        (b"\x10\x01a\x01b", False),
        (b"\x0f\x10\x01b", False),
        (b"\x00\x01a\x7f\x01" + bytes(128), False),
        (b"\x40\x01a\x01b", True),
        (b"\x82\x41\x01b", True),
        (b"\x20", True),
        (b"\x00\x05a", True),
        (b"\xff", True),
        (b"", False),
    ],
)
def test_changes_of_the_table_are_recognised_in_the_bytes(block, changes):
    assert changes_table(block) is changes


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"\x00\x05a", b"\x00\x81\xff\x01b"])
def test_an_undecodable_block_is_a_connection_error(block):
    with pytest.raises(Http2ConnectionError, match="COMPRESSION_ERROR"):
        FieldBlockDecoder(lambda fields: fields, 1 << 16).read(block)


BEGIN = ((b":status", b"200"), (b"content-type", b"application/grpc"), (b"other", b"x"))
OK = ((b"grpc-status", b"0"),)


def test_constant_fields_become_constant_bytes_that_a_client_understands():
    writer, decoder = FieldBlockEncoder(), hpack.Decoder()
    sent = []
    for round_ in range(6):
        for fields in (BEGIN, OK):
            block = writer.encode_constant(fields)
            assert plain(decoder.decode(block, raw=True)) == fields
            sent.append(block)
        varying = (*BEGIN, (b"grpc-message", str(round_).encode() * 100))
        assert plain(decoder.decode(writer.encode_once(varying), raw=True)) == varying
    assert sent[2:4] == sent[4:6] == sent[-2:]
    assert [len(block) for block in sent[-2:]] == [3, 1]


@given(st.lists(st.sampled_from([BEGIN, OK, (*BEGIN[:2], (b"grpc-encoding", b"gzip")), "once"]), max_size=20))
def test_constant_fields_may_come_in_any_order(sequence):
    writer, decoder = FieldBlockEncoder(), hpack.Decoder()
    for each in sequence:
        fields = BEGIN if each == "once" else each
        block = writer.encode_once(fields) if each == "once" else writer.encode_constant(fields)
        assert plain(decoder.decode(block, raw=True)) == fields


@pytest.mark.parametrize("size", [0, 100])
def test_a_client_with_a_small_table_gets_no_insertions(size):
    writer, decoder = FieldBlockEncoder(), hpack.Decoder()
    decoder.decode(writer.encode_constant(BEGIN))
    writer.on_table_size(size)
    decoder.max_allowed_table_size = size
    for _ in range(3):
        assert plain(decoder.decode(writer.encode_constant(BEGIN), raw=True)) == BEGIN
        assert plain(decoder.decode(writer.encode_once(OK), raw=True)) == OK
    assert decoder.header_table_size == 0
    writer.on_table_size(4096)
    assert plain(decoder.decode(writer.encode_constant(BEGIN), raw=True)) == BEGIN
