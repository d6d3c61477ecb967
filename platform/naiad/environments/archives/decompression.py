"""Archives as streams of plain bytes, decompressed ahead of whoever reads them.

The decoders give up Python's lock while they work, so a thread of its own keeps a second core busy: it decompresses
the next members while the last ones are checked and written.
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

__all__ = ["DECOMPRESSION_ERRORS", "ForwardReader", "open_decompressor", "read_ahead", "read_inline"]

igzip: ModuleType | None
try:
    from isal import igzip, isal_zlib
except ImportError:  # no wheel for this machine: the standard library's takes twice as long
    igzip = None


DECOMPRESSION_ERRORS: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, zstandard.ZstdError)
"""What the decoders raise on damaged input, beside EOFError, and OSError of gzip and bz2."""
if igzip is not None:
    DECOMPRESSION_ERRORS = (*DECOMPRESSION_ERRORS, cast("type[Exception]", isal_zlib.error))

# Large enough that handing chunks from thread to thread costs nothing beside decompressing them.
_CHUNK = 256 * 1024
# 8 MB of content: enough to ride out a large file being written, and little beside any model.
_CHUNKS_AHEAD = 32
_TAIL = 1024


class ForwardReader:
    """A file of chunks that come one after the other: `tell`, `read` and `seek` to what lies ahead.

    `tarfile` has a mode for streams, but its loops take twice the time of reading from this.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = b""
        self._view = memoryview(b"")
        self._at = 0
        self._before = 0
        self._tail = b""

    def tell(self) -> int:
        """How far it is read."""
        return self._before + self._at

    def read(self, size: int) -> bytes:
        """As many bytes, fewer only at the end."""
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
        """The same bytes as `read` gives, where they lie: as parts of the chunks they came in."""
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
        """As many bytes, fewer only at the end, and stay before them."""
        while len(self._chunk) - self._at < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._note_tail(chunk)
            left = self._chunk[self._at :]
            self._before += self._at
            self._take(left + chunk)
        return self._chunk[self._at : self._at + size]

    def seek(self, position: int) -> int:
        """Go on from a later position, or from the end if that comes first."""
        if position < self.tell():
            raise ValueError(f"cannot go back from {self.tell()} to {position} in a stream")
        while position > self._before + len(self._chunk):
            if not self._next():
                break
        self._at = min(position - self._before, len(self._chunk))
        return self.tell()

    def read_to_end(self) -> bytes:
        """Read to the end, where the decoders keep their checksums; the last bytes, 1024 if there are as many."""
        while self._next():
            pass
        return self._tail

    def _next(self) -> bool:
        chunk = next(self._chunks, b"")
        if not chunk:
            return False
        self._before += len(self._chunk)
        self._take(chunk)
        self._note_tail(chunk)
        return True

    def _take(self, chunk: bytes) -> None:
        self._chunk, self._view, self._at = chunk, memoryview(chunk), 0

    def _note_tail(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk[-_TAIL:])[-_TAIL:]


def open_decompressor(ending: str, file: IO[bytes]) -> IO[bytes]:
    """What decompresses a file, by the ending of such archives."""
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
    """Read a stream in the thread that asks: for who needs but the beginning."""
    yield ForwardReader(_chunks(file))


@contextmanager
def read_ahead(file: IO[bytes]) -> Iterator[ForwardReader]:
    """Read a stream in a thread of its own, which has ended when the context is left."""
    with closing(_Ahead(_chunks(file))) as ahead:
        yield ForwardReader(iter(ahead))


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(_CHUNK):
        yield data


class _Ahead:
    """Takes chunks in a thread, and hands them over in the order they came, with the error that ended them."""

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
        """End the thread, wherever it is."""
        self._closed = True
        while self._thread.is_alive():
            # It may be waiting for room, and look at the mark only then.
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
        except BaseException as error:  # noqa: BLE001 - raised again where the chunks are read
            self._queue.put(error)
        else:
            self._queue.put(None)
