"""Field blocks: repeated ones are decoded once, constant ones have constant bytes, and hpack agrees with both."""

from __future__ import annotations

import re

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.frontends.http2.field_blocks import FieldBlockDecoder, FieldBlockEncoder
from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError
from naiad.frontends.http2.limits import Http2Limits

NAMES = st.sampled_from([b"a", b"b", b"content-type", b":status", b"long-name-" * 20])
VALUES = st.binary(max_size=200) | st.sampled_from([b"", b"200", b"x" * 600])
FIELDS = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=5)
ENDLESS = Http2Limits(decoded_size=1 << 20, huffman_size=1 << 20)


def decoder(parse=lambda fields: fields, limits=None):
    return FieldBlockDecoder(parse, limits or Http2Limits())


def plain(fields):
    return tuple((bytes(name), bytes(value)) for name, value in fields)


@given(st.lists(st.tuples(FIELDS, st.booleans()), max_size=12), st.sampled_from([4096, 512]))
def test_repeated_blocks_mean_what_hpack_decodes(blocks, table_size):
    """Tables that hold less than the longest field as well: it empties them."""
    encoder, plain_decoder = hpack.Encoder(), hpack.Decoder(max_header_list_size=1 << 20)
    encoder.header_table_size = table_size
    reader = decoder(limits=ENDLESS)
    for fields, sensitive in blocks:
        for _ in range(3):
            block = encoder.encode([(*field, sensitive) for field in fields])
            assert reader.read(block) == plain(plain_decoder.decode(block, raw=True))


def test_a_repeated_block_is_parsed_once():
    encoder, seen = hpack.Encoder(), []
    reader = decoder(lambda fields: seen.append(fields) or len(seen))
    fields = [(":method", "POST"), ("x", "y")]
    results = [reader.read(encoder.encode(fields)) for _ in range(5)]
    assert results == [1, 2, 2, 2, 2]
    reader.read(encoder.encode([("new", "field")]))
    moved = encoder.encode(fields)
    assert [reader.read(moved), reader.read(moved)] == [4, 4]
    assert seen[3] == plain([(b":method", b"POST"), (b"x", b"y")])


PIECES = st.sampled_from(
    [
        b"\x82",  # an indexed field of the static table
        b"\xbe",  # ... of the dynamic one
        b"\xff\x00",
        b"\x00\x01a\x01b",  # a literal
        b"\x10\x01a\x81\x07",  # ... that is never indexed, with Huffman's code
        b"\x0f\x10\x01b",
        b"\x40\x01a\x01b",  # one that enters the table
        b"\x41\x85\x90\xb1\x04\x0f\x7f",
        b"\x7f\x00\x03xyz",
        b"\x40\x01a\x7f\xa0\x1f" + bytes(4127),  # ... and is longer than the table
        b"\x20",  # sizes of the table
        b"\x3f\x20",
        b"\x3f\xe1\x1f",
        b"\x3f\xe2\x1f",
    ]
)
BLOCKS = st.lists(PIECES | st.binary(max_size=3), max_size=8).map(b"".join)


@given(st.lists(BLOCKS, max_size=8))
def test_any_block_means_what_hpack_decodes(blocks):
    """Only blocks with more than two sizes of the table differ, by design."""
    reader, reference = decoder(limits=ENDLESS), hpack.Decoder(max_header_list_size=1 << 20)
    for block in blocks:
        try:
            fields = plain(reference.decode(block, raw=True))
        except hpack.HPACKError:
            with pytest.raises(Http2ConnectionError, match="COMPRESSION_ERROR"):
                reader.read(block)
            return
        if re.match(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}", block):
            with pytest.raises(Http2ConnectionError, match="more than two table sizes"):
                reader.read(block)
            return
        assert reader.read(block) == fields
        entries = [(bytes(name), bytes(value)) for name, value in reference.header_table.dynamic_entries]
        assert list(reader._table.dynamic_entries) == entries


@pytest.mark.parametrize("change", [b"\x40\x01a\x01b", b"\x20", b"\x21"])
def test_known_blocks_are_forgotten_when_the_table_changes(change):
    """The same bytes then mean another field, or none."""
    seen = []
    reader = decoder(lambda fields: seen.append(fields) or len(seen))
    reader.read(b"\x40\x01k\x01v")
    assert [reader.read(b"\xbe") for _ in range(3)] == [2, 2, 2]
    reader.read(change)
    if change[0] & 0x40:
        assert reader.read(b"\xbe") == 4
        assert seen[-1] == ((b"a", b"b"),)
    else:
        with pytest.raises(Http2ConnectionError, match="COMPRESSION_ERROR"):
            reader.read(b"\xbe")


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"\x00\x05a", b"\x00\x81\xff\x01b"])
def test_an_undecodable_block_is_a_connection_error(block):
    with pytest.raises(Http2ConnectionError, match="COMPRESSION_ERROR"):
        decoder().read(block)


def test_huffmans_code_is_bounded_by_itself():
    """It costs as much as a hundred other bytes."""
    block = hpack.Encoder().encode([("x", "a" * 20_000)])
    assert len(decoder().read(block)[0][1]) == 20_000
    with pytest.raises(Http2ConnectionError, match="more than 12000 bytes in Huffman's code") as failure:
        decoder(limits=Http2Limits(huffman_size=12_000)).read(block)
    assert failure.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_the_cost_of_a_block_is_that_of_its_fields_and_of_huffmans_code():
    reader = decoder()
    reader.read(b"\x82" * 100)
    plain_cost = reader.take_cost()
    reader.read(hpack.Encoder().encode([("x", "a" * 1600)]))
    assert reader.take_cost() > plain_cost > 0
    reader.read(b"\x82" * 100)
    assert reader.take_cost() == plain_cost
    reader.read(b"\x82" * 100)
    assert reader.take_cost() == 0  # known


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
