"""Draw landscape.png: an evening over hills and a lake. The client draws it again to compute the expected pixels."""

import struct
import zlib
from pathlib import Path

import numpy as np

WIDTH, HEIGHT = 128, 96


def landscape():
    """The pixels, as bytes of shape [height, width, 3]."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    height = (y / HEIGHT)[..., None]
    image = (1 - height) * np.array([60, 90, 170]) + height * np.array([255, 160, 90])  # sky
    sun = np.hypot(x - 88, y - 40)[..., None]
    image += np.exp(-sun / 14) * np.array([190, 140, 60])
    image = np.where(sun < 8, np.array([255, 240, 190]), image)
    for level, wave, colour in ((52, 21, (96, 84, 120)), (60, 13, (62, 66, 84)), (68, 9, (34, 44, 48))):  # hills
        ridge = level + 5 * np.sin(x / wave + level) + 3 * np.sin(x / (wave / 2.7))
        image = np.where((y > ridge)[..., None], np.array(colour), image)
    water = y > 76
    mirrored = image[np.clip(152 - y, 0, HEIGHT - 1).astype(int), (x + 2 * np.sin(y * 1.7)).astype(int) % WIDTH]
    image = np.where(water[..., None], 0.7 * mirrored + np.array([10, 20, 40]), image)
    grain = np.random.RandomState(7).normal(0, 3, image.shape)  # noise, as in photographs
    return np.clip(image + grain, 0, 255).astype(np.uint8)


def write_png(path, pixels):
    """A PNG file whose lines use the five filters in turn, so that the decoder needs all of them."""
    above = np.pad(pixels.astype(int), ((1, 0), (1, 0), (0, 0)))
    here, up, left, corner = above[1:, 1:], above[:-1, 1:], above[1:, :-1], above[:-1, :-1]
    nearest = np.abs([up - corner, left - corner, left + up - 2 * corner]).argmin(axis=0)
    guesses = [0 * here, left, up, (left + up) // 2, np.choose(nearest, [left, up, corner])]
    lines = b"".join(
        bytes([row % 5]) + ((here - guesses[row % 5])[row] % 256).astype(np.uint8).tobytes()
        for row in range(len(pixels))
    )
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )
    )


if __name__ == "__main__":
    write_png(Path(__file__).with_name("landscape.png"), landscape())
