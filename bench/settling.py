"""Letting the machine come to rest before a start that writes much, so that no start pays for what was before it."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

# Without a journal, ext4 uses no inode again within a minute after its file was removed, or five while that is not on
# disk yet, and steps over them one by one whenever it makes a file: ten times the time for each.
_REUSED_AFTER = 65.0
_NO_JOURNAL = "<none>"
# More than a start with an environment writes and reads. A virtual machine that gave memory back to its host gets it
# again page by page, at four times the price of a page it has.
_MEMORY = 2 << 30
_PAGE = 4096


class Rest:
    """Knows when files were removed last, and waits until that is past. They were when it is made.

    Args:
        delay: Seconds after which removed files slow nothing down any more.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self.removed()

    def removed(self) -> None:
        """Many files were just removed."""
        self._removed = time.monotonic()

    def wait(self) -> None:
        """Write out what was written, and wait until the next start finds the machine as any other finds it."""
        os.sync()
        time.sleep(max(0.0, self._removed + self._delay - time.monotonic()))
        _have_memory()


def rest_on(folder: Path) -> Rest:
    """What the file system of a folder needs, where an earlier run may have removed files a moment ago."""
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
