"""Reads PNG files of 8 bits per channel, grey or RGB, with or without alpha; needs nothing but numpy.

For large photographs (here Python goes from pixel to pixel), JPEG and other formats give the model an environment with
Pillow, and use `PIL.Image.open` instead.
"""

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # number of channels for each colour type of PNG
LARGEST = 4096 * 4096  # pixels; limits the memory that a small file with a huge size in its header can request


def read_png(data):
    """The pixels as bytes of shape [height, width, 3]; raises ValueError for an invalid file."""
    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG file")
    chunks = dict.fromkeys((b"IHDR", b"IDAT"), b"")
    at = len(SIGNATURE)
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind in chunks:
            chunks[kind] += data[at + 8 : at + 8 + length]
        at += length + 12
    try:
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        if depth != 8 or colour not in CHANNELS or interlaced:
            raise ValueError(
                f"a PNG file of depth {depth}, colour type {colour}, interlaced {interlaced}; not read here"
            )
        if not 0 < width * height <= LARGEST:
            raise ValueError(f"a PNG file of {width} x {height} pixels; not read here")
        channels = CHANNELS[colour]
        size = height * (1 + width * channels)
        content = zlib.decompressobj().decompress(chunks[b"IDAT"], size)
        if len(content) < size:
            raise ValueError("a broken PNG file: its end is missing")
    except (struct.error, zlib.error) as error:
        raise ValueError(f"a broken PNG file: {error}") from None
    # Each line begins with the number of its filter.
    lines = np.frombuffer(content, np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height + 1, width + 1, channels), np.uint8)  # a line of zeros above, a column on the left
    for row, line in enumerate(lines, 1):
        _undo_filter(int(line[0]), line[1:].reshape(width, channels), pixels[row - 1], pixels[row])
    colours = pixels[1:, 1:, : 1 if channels < 3 else 3]
    return np.broadcast_to(colours, (height, width, 3))


def _undo_filter(kind, line, above, here):
    """Undo a line's filter: bytes are stored as differences from a prediction by their neighbours, modulo 256."""
    if kind == 0:
        here[1:] = line
    elif kind == 1:
        here[1:] = np.cumsum(line, axis=0, dtype=np.uint8)
    elif kind == 2:
        here[1:] = line + above[1:]
    elif kind in (3, 4):
        foretell = _average if kind == 3 else _paeth
        for x, difference in enumerate(line.astype(int), 1):
            guess = foretell(here[x - 1].astype(int), above[x].astype(int), above[x - 1].astype(int))
            here[x] = (difference + guess) % 256
    else:
        raise ValueError(f"a broken PNG file: filter {kind}")


def _average(left, up, _):
    return (left + up) // 2


def _paeth(left, up, corner):
    """The Paeth predictor: the neighbour nearest to left + up - corner."""
    distances = np.abs([up - corner, left - corner, left + up - 2 * corner])
    return np.choose(distances.argmin(axis=0), [left, up, corner])
