"""Writing gzip on all processors, where the standard library's writer has one. The bytes do not depend on how many."""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO

__all__ = ["GzipWriter", "gzip_writer"]

# The level of conda-pack: the next ones take twice the time for a twentieth of the size.
_LEVEL = 4
# Far above the window of 32 KiB that each block is given of the one before, and small beside what is packed.
_BLOCK, _WINDOW = 1 << 20, 1 << 15
# RFC 1952: deflate, no flags, no time, no hint, an unknown system.
_HEADER = b"\x1f\x8b\x08\0" + b"\0" * 4 + b"\0\xff"


@contextmanager
def gzip_writer(raw: IO[bytes]) -> Iterator[GzipWriter]:
    """A stream of one gzip member into an open file. Where an error ends it, what the file holds is no gzip file."""
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads, thread_name_prefix="gzip") as pool:
        stream = GzipWriter(raw, pool, 2 * threads)
        yield stream
        stream.finish()


class GzipWriter:
    """What is written to it is compressed in blocks, side by side; made by `gzip_writer`."""

    def __init__(self, raw: IO[bytes], pool: Executor, ahead: int) -> None:
        self._raw, self._pool, self._ahead = raw, pool, ahead
        self._compressed: deque[Future[bytes]] = deque()
        self._block = bytearray()
        self._before = b""
        self._checksum = self._size = 0
        raw.write(_HEADER)

    def write(self, data: bytes | memoryview) -> int:
        """Take content; how much of it, in bytes, which is all.

        Raises:
            OSError: An earlier part cannot be written.
        """
        self._checksum = zlib.crc32(data, self._checksum)
        self._size += len(data)
        self._block += data
        while len(self._block) >= _BLOCK:
            self._hand_over(bytes(self._block[:_BLOCK]))
            del self._block[:_BLOCK]
        return len(data)

    def finish(self) -> None:
        """Write what is left, and the end.

        Raises:
            OSError: It cannot be written.
        """
        self._hand_over(bytes(self._block))
        for part in self._compressed:
            self._raw.write(part.result())
        end = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS).flush()
        self._raw.write(end + struct.pack("<LL", self._checksum, self._size & 0xFFFFFFFF))

    def _hand_over(self, block: bytes) -> None:
        # Bounded: a disk may be slower than the processors.
        if len(self._compressed) > self._ahead:
            self._raw.write(self._compressed.popleft().result())
        self._compressed.append(self._pool.submit(_compress, block, self._before))
        self._before = block[-_WINDOW:]


def _compress(block: bytes, before: bytes) -> bytes:
    """What a block is in a stream in which others follow."""
    compressor = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS, zdict=before)
    return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)
