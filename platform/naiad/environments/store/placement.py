"""Where on the disk a tree of files is made.

ext4 makes files near their folder, and a folder near its parent. Without a journal, as on many virtual machines, it
takes no inode that was freed within the last minutes, but passes over all of them, one by one, for every file: where
a tree of ten thousand files was removed, making the next one takes up to twenty times as long. What lies directly in
the top folder of a file system, or in one that is marked as such, is placed by a hash of its name instead, most
likely far from there.
"""

from __future__ import annotations

import array
import contextlib
import os
import sys
from pathlib import Path

if sys.platform == "linux":
    import fcntl

__all__ = ["spread"]

# linux/fs.h; what chattr(1) calls T.
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_TOP_FOLDER = 0x00020000


def spread(folder: Path) -> None:
    """Have each folder that is made directly in this one placed apart from the others, where the file system can.

    It is left as it is where that cannot be asked for: another file system or system, or a folder of another user's.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flags = array.array("l", [0])
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            if not flags[0] & _TOP_FOLDER:
                flags[0] |= _TOP_FOLDER
                fcntl.ioctl(descriptor, _SET_FLAGS, flags)
        finally:
            os.close(descriptor)
