"""Decompression of archives, optionally in a thread that reads ahead.

The decoders release the GIL, so a separate thread uses a second core: it decompresses the next members while the
previous ones are checked and written.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import queue
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO, TYPE_CHECKING, cast

import zstandard

if TYPE_CHECKING:
    from types import ModuleType

igzip: ModuleType | None
try:
    from isal import igzip, isal_zlib
except ImportError:  # no wheel for this machine: the standard library takes twice as long
    igzip = None


# Errors of the decoders for damaged input; they also raise EOFError, gzip and bz2 also OSError.
DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, zstandard.ZstdError)
if igzip is not None:
    DECOMPRESSION_ERRORS = (*DECOMPRESSION_ERRORS, cast("type[Exception]", isal_zlib.error))

# Large enough that passing chunks between threads costs little compared with decompression.
_CHUNK = 256 * 1024
# 8 MB of content: enough to keep decompressing while a large file is written.
_CHUNKS_AHEAD = 32
_TAIL = 1024


class ForwardReader:
    """A file object over a stream of chunks: `tell`, `read`, and `seek` forward.

    `tarfile` has a mode for streams, but reading from this class takes half the time.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = b""
        self._view = memoryview(b"")
        self._at = 0
        self._before = 0
        self._tail = b""

    def tell(self) -> int:
        return self._before + self._at

    def read(self, size: int) -> bytes:
        end = self._at + size
        data = self._chunk[self._at : end]
        self._at = min(end, len(self._chunk))
        if len(data) == size or not self._next():
            return data
        parts = [data]
        missing = size - len(data)
        while missing:
            part = self._chunk[self._at : self._at + missing]
            self._at += len(part)
            missing -= len(part)
            parts.append(part)
            if missing and not self._next():
                break
        return b"".join(parts)

    def read_pieces(self, size: int) -> list[memoryview]:
        """The next *size* bytes as views of the chunks, without copying."""
        found = []
        while size:
            part = self._view[self._at : self._at + size]
            if part:
                self._at += len(part)
                size -= len(part)
                found.append(part)
            elif not self._next():
                break
        return found

    def peek(self, size: int) -> bytes:
        """The next *size* bytes without advancing; fewer only at the end."""
        while len(self._chunk) - self._at < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._keep_tail(chunk)
            left = self._chunk[self._at :]
            self._before += self._at
            self._set_chunk(left + chunk)
        return self._chunk[self._at : self._at + size]

    def seek(self, position: int) -> int:
        """Move to a later position, or to the end if that comes first."""
        if position < self.tell():
            raise ValueError(f"cannot seek back from {self.tell()} to {position} in a stream")
        while position > self._before + len(self._chunk):
            if not self._next():
                break
        self._at = min(position - self._before, len(self._chunk))
        return self.tell()

    def read_to_end(self) -> bytes:
        """Read to the end, where the decoders verify checksums; returns the last 1024 bytes of the stream."""
        while self._next():
            pass
        return self._tail

    def _next(self) -> bool:
        chunk = next(self._chunks, b"")
        if not chunk:
            return False
        self._before += len(self._chunk)
        self._set_chunk(chunk)
        self._keep_tail(chunk)
        return True

    def _set_chunk(self, chunk: bytes) -> None:
        self._chunk, self._view, self._at = chunk, memoryview(chunk), 0

    def _keep_tail(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk[-_TAIL:])[-_TAIL:]


def open_decompressor(ending: str, file: IO[bytes]) -> IO[bytes]:
    """A file object that decompresses *file*, by the format's suffix; *file* itself for a plain tar."""
    match ending:
        case "tar.gz":
            return cast("IO[bytes]", (igzip.IGzipFile if igzip else gzip.GzipFile)(fileobj=file, mode="rb"))
        case "tar.bz2":
            return cast("IO[bytes]", bz2.BZ2File(file))
        case "tar.xz":
            return cast("IO[bytes]", lzma.LZMAFile(file))
        case "tar.zst":
            return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        case _:
            return file


@contextmanager
def read_inline(file: IO[bytes]) -> Iterator[ForwardReader]:
    """A reader that decompresses in the calling thread: for reading only the beginning."""
    yield ForwardReader(_chunks(file))


@contextmanager
def read_ahead(file: IO[bytes]) -> Iterator[ForwardReader]:
    """A reader with a separate decompression thread, which has ended when the context exits."""
    with closing(_ReadAhead(_chunks(file))) as ahead:
        yield ForwardReader(iter(ahead))


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(_CHUNK):
        yield data


class _ReadAhead:
    """Iterates over chunks that a thread reads ahead, then raises the error that ended the source, if any."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._source = chunks
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_CHUNKS_AHEAD)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="naiad-decompress", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        while (found := self._queue.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def close(self) -> None:
        self._closed = True
        while self._thread.is_alive():
            # The thread may be blocked on a full queue; it checks the flag after the next put.
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def _run(self) -> None:
        try:
            for chunk in self._source:
                if self._closed:
                    return
                self._queue.put(chunk)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that reads the chunks
            self._queue.put(error)
        else:
            self._queue.put(None)
