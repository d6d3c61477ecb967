"""Gzip written by several threads is one gzip member, and the same bytes from any number of them."""

from __future__ import annotations

import gzip
import io
import random
import threading

import pytest

from naiad.environments.archives import parallel_gzip
from naiad.environments.archives.parallel_gzip import gzip_writer

MB = 1 << 20


def written(content: bytes, step: int) -> bytes:
    raw = io.BytesIO()
    with gzip_writer(raw) as stream:
        for start in range(0, len(content), step):
            assert stream.write(memoryview(content)[start : start + step]) == len(content[start : start + step])
    return raw.getvalue()


@pytest.mark.parametrize("size", [0, 1, MB - 1, MB, MB + 1, 5 * MB + 12345])
def test_the_content_comes_back_however_it_was_written(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(size)
    # Words, so that there is something to compress, also across the borders of blocks.
    words = [source.randbytes(8) for _ in range(1000)]
    content = b"".join(source.choices(words, k=size // 8 + 1))[:size]
    packed = written(content, 10_007)

    assert gzip.decompress(packed) == content
    assert packed == written(content, 3 * MB)
    for processors in (1, 7):
        monkeypatch.setattr(parallel_gzip, "usable_processors", lambda processors=processors: processors)
        assert packed == written(content, 10_007)
    # Blocks see the one before: no larger, within a thousandth, than what the standard library writes in one.
    assert len(packed) <= len(gzip.compress(content, 4, mtime=0)) * 1.001 + 64


def test_a_full_disk_ends_the_decoding_and_no_thread_is_left() -> None:
    class Full(io.BytesIO):
        def write(self, data) -> int:
            if self.tell() > 2 * MB:
                raise OSError(28, "No space left on device")
            return super().write(data)

    def fill() -> None:
        with gzip_writer(Full()) as stream:
            for _ in range(500):
                stream.write(random.Random(0).randbytes(MB))

    # Threads of other tests may end meanwhile, so that their number says nothing.
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="No space left"):
        fill()
    assert set(threading.enumerate()) <= before
