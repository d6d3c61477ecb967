"""Long blocks stay out of the heap. In a process of its own, since the limit holds for a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
from naiad.core import heap

{first}
long = bytearray(30 << 20)
del long  # glibc raises its limit to the size of what was freed
block = bytearray(6 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
for line in open("/proc/self/maps"):
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if start <= address < end:
        print("heap" if line.rstrip().endswith("[heap]") else "mapped")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
@pytest.mark.parametrize(("first", "place"), [("heap.fix_thresholds()", "mapped"), ("", "heap")])
def test_a_block_of_6_mb_is_mapped_after_a_longer_one_was_freed(first: str, place: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(first=first)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{place}\n"
