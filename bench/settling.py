"""Waits before starts that write many files, so that no start is slowed down by the work before it."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

# Without a journal, ext4 does not reuse an inode within one minute after its file was removed (five minutes while the
# removal is not on disk). Creating a file skips these inodes one by one, which takes ten times as long.
_REUSED_AFTER = 65.0
_NO_JOURNAL = "<none>"
# More than a start with an environment writes and reads. A virtual machine that has returned memory to its host gets it
# back page by page, and the first use of such a page takes four times as long.
_MEMORY = 2 << 30
_PAGE = 4096


class Rest:
    """Waits until the last removal of files has no effect on new files. Creating this object counts as a removal.

    Args:
        delay: Seconds after a removal during which creating files is slow.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self.removed()

    def removed(self) -> None:
        """Record that files were removed now."""
        self._removed = time.monotonic()

    def wait(self) -> None:
        """Flush written data to disk, and wait until the next start has the same conditions as any other."""
        os.sync()
        time.sleep(max(0.0, self._removed + self._delay - time.monotonic()))
        _have_memory()


def rest_on(folder: Path) -> Rest:
    """A `Rest` with the delay of the folder's file system; an earlier run may just have removed files."""
    return Rest(_REUSED_AFTER if _is_ext4_without_journal(folder) else 0.0)


def _is_ext4_without_journal(folder: Path) -> bool:
    device = folder.stat().st_dev
    name = Path(os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")).name
    try:
        return Path("/sys/fs/ext4", name, "journal_task").read_text(encoding="ascii").strip() == _NO_JOURNAL
    except OSError:
        return False


def _have_memory() -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * _PAGE
    with mmap.mmap(-1, min(_MEMORY, max(_PAGE, available // 2))) as memory:
        for at in range(0, len(memory), _PAGE):
            memory[at] = 1
