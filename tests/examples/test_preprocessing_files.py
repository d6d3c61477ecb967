"""The PNG reader of the preprocessing example: its client shows one file of one kind, users have others."""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np
import pytest
from examples.running import EXAMPLES

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PIXELS = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4) * 4
GREY, RGB, GREY_ALPHA, RGB_ALPHA = 0, 2, 4, 6


@pytest.fixture(scope="module", name="read_png")
def reader():
    path = EXAMPLES / "preprocessing/models/preprocess/1/decode_png.py"
    # Not imported: that would leave bytecode in the example's folder.
    found = {}
    exec(compile(path.read_text(), path, "exec"), found)
    return found["read_png"]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels, colour=RGB, *, depth=8, interlaced=0, filter_kind=0, size=None):
    """A file whose lines all say that they have gone through one filter; only 0 leaves their bytes as they are."""
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", *(size or (width, height)), depth, colour, 0, 0, interlaced)
    lines = b"".join(bytes([filter_kind]) + line.tobytes() for line in pixels)
    parts = (
        chunk(b"IHDR", header),
        chunk(b"tEXt", b"Title\0x"),
        chunk(b"IDAT", zlib.compress(lines)),
        chunk(b"IEND", b""),
    )
    return SIGNATURE + b"".join(parts)


@pytest.mark.parametrize(
    ("colour", "channels", "seen"),
    [(GREY, 1, [0, 0, 0]), (GREY_ALPHA, 2, [0, 0, 0]), (RGB, 3, [0, 1, 2]), (RGB_ALPHA, 4, [0, 1, 2])],
)
def test_every_colour_type_becomes_three_channels(read_png, colour, channels, seen):
    given = PIXELS[:, :, :channels]

    assert read_png(png(given, colour)).tolist() == given[:, :, seen].tolist()


def test_a_file_in_several_parts_is_one_image(read_png):
    whole = png(PIXELS[:, :, :3])
    start = whole.index(b"IDAT") - 4
    (length,) = struct.unpack_from(">I", whole, start)
    data = whole[start + 8 : start + 8 + length]
    parted = whole[:start] + chunk(b"IDAT", data[:7]) + chunk(b"IDAT", data[7:]) + whole[start + 12 + length :]

    assert read_png(parted).tolist() == PIXELS[:, :, :3].tolist()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "not a PNG file"),
        (b"\xff\xd8\xff\xe0 a JPEG file", "not a PNG file"),
        (SIGNATURE, "a broken PNG file: unpack requires a buffer of 13 bytes"),
        (png(PIXELS[:, :, :3], depth=16), "a PNG file of depth 16, colour type 2, interlaced 0; not read here"),
        (png(PIXELS[:, :, :1], 3), "a PNG file of depth 8, colour type 3, interlaced 0; not read here"),
        (png(PIXELS[:, :, :3], interlaced=1), "a PNG file of depth 8, colour type 2, interlaced 1; not read here"),
        (png(PIXELS[:, :, :3], size=(0, 3)), "a PNG file of 0 x 3 pixels; not read here"),
        (png(PIXELS[:, :, :3], size=(2**31, 2**31)), "a PNG file of 2147483648 x 2147483648 pixels; not read here"),
        (png(PIXELS[:, :, :3], size=(5, 300)), "a broken PNG file: its end is missing"),
        (png(PIXELS[:, :, :3], filter_kind=9), "a broken PNG file: filter 9"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_as_such(read_png, file, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        read_png(file)


def test_damaged_data_is_told_from_a_missing_end(read_png):
    file = png(PIXELS[:, :, :3])
    at = file.index(b"IDAT") + 4

    with pytest.raises(ValueError, match=r"^a broken PNG file: Error -3"):
        read_png(file[:at] + b"\xff\xff" + file[at + 2 :])
