"""The ELF writer: what it writes is loaded by this machine's loader, and read back by the reader."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from naiad_stub.native.elf import TABLE_SYMBOL, ElfError, read_shared_object, write_library
from support.system_packages import needs

NAMES = [f"function_{number}" for number in range(300)]


def load(data: bytes):
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}"), descriptor


@pytest.fixture
def library():
    loaded, descriptor = load(write_library(NAMES, "libmade.so"))
    yield loaded
    os.close(descriptor)


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="no ELF files are written for this machine")
def test_functions_jump_through_the_table_and_others_to_the_fallback_with_their_number(library):
    table = (ctypes.c_size_t * (len(NAMES) + 1)).in_dll(library, TABLE_SYMBOL)
    prototype = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)
    fallback, twice = prototype(lambda number: 1000 + number), prototype(lambda number: 2 * number)
    table[len(NAMES)] = ctypes.cast(fallback, ctypes.c_void_p).value
    table[7] = ctypes.cast(twice, ctypes.c_void_p).value

    assert [getattr(library, name)(21) for name in NAMES] == [
        42 if number == 7 else 1000 + number for number in range(len(NAMES))
    ]


def test_what_was_written_is_read_back():
    for machine in ("x86_64", "aarch64"):
        found = read_shared_object(write_library(NAMES, "libmade.so", machine))
        assert found.machine == machine
        assert found.exports == {*NAMES, TABLE_SYMBOL}
        assert (found.imports, found.needed, found.search_path) == (frozenset(), (), "")


def test_another_machine_is_an_error_that_names_those_that_are_supported():
    with pytest.raises(ElfError, match="run on aarch64 and x86_64, and this machine's processor is 'riscv64'"):
        write_library(NAMES, "libmade.so", "riscv64")


def test_a_compiled_library_is_read_with_its_needs_and_symbols():
    extension = sys.modules["_ctypes"].__file__

    found = read_shared_object(Path(extension).read_bytes())

    assert found.machine == platform.machine()
    assert "PyInit__ctypes" in found.exports
    assert "PyErr_SetString" in found.imports
    assert any(name.startswith("libc.so") for name in found.needed)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@needs("readelf")
def test_readelf_finds_nothing_wrong_with_it(machine, tmp_path):
    path = tmp_path / "made.so"
    path.write_bytes(write_library(NAMES, "libmade.so", machine))

    shown = subprocess.run(
        ["readelf", "-W", "-l", "-d", "-r", "-D", path], capture_output=True, text=True, timeout=30, check=True
    )

    assert shown.stderr == ""
    assert "Library soname: [libmade.so]" in shown.stdout
    assert shown.stdout.count("_RELATIV") == len(NAMES)


@pytest.mark.parametrize("size", [0, 3, 63, 64, 200, 5000])
def test_a_cut_off_file_is_an_error(size):
    with pytest.raises(ElfError):
        read_shared_object(write_library(NAMES, "libmade.so")[:size])


def test_random_bytes_after_the_header_are_an_error_or_a_reading_and_never_another_exception():
    import random

    whole = write_library(["a", "b"], "libmade.so")
    for seed in range(300):
        dice = random.Random(seed)
        data = bytearray(whole)
        for _ in range(20):
            data[dice.randrange(6, 600)] = dice.randrange(256)
        with contextlib.suppress(ElfError):
            read_shared_object(bytes(data))


def test_the_code_for_aarch64_jumps_to_the_entries_of_the_table():
    """Decoded here, since most machines that run this test have no emulator for it."""
    data = write_library(NAMES, "libmade.so", "aarch64")
    exports = symbols(data)
    table = exports[TABLE_SYMBOL]
    for number, name in enumerate(NAMES):
        at = exports[name]
        assert jump_target(data, at) == table + 8 * number
        (load,) = struct.unpack_from("<I", data, at + 16)
        assert load == 0x52800000 | number << 5  # movz w0, #number
        assert jump_target(data, at + 20) == table + 8 * len(NAMES)


@needs("qemu-aarch64")
def test_a_program_for_aarch64_loads_and_calls_it_in_an_emulator(tmp_path):
    library, program = tmp_path / "libmade.so", tmp_path / "calls_all"
    library.write_bytes(write_library(NAMES, "libmade.so", "aarch64"))
    source = Path(__file__).with_name("calls_all.c")
    build = ["aarch64-linux-gnu-gcc", "-Wall", "-Werror", "-o", program, source, "-ldl"]
    subprocess.run(build, check=True, timeout=60)

    run = subprocess.run(
        ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, library, str(len(NAMES))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.stderr == ""
    assert [int(line) for line in run.stdout.split()] == [
        42 if number == 7 else 1000 + number for number in range(len(NAMES))
    ]


def symbols(data: bytes) -> dict[str, int]:
    """Addresses of the exported symbols, found by the dynamic section. Addresses and offsets are equal in these files."""
    (dynamic,) = [
        offset
        for kind, _, offset, *_ in (struct.unpack_from("<IIQQQQQQ", data, 64 + 56 * index) for index in range(4))
        if kind == 2
    ]
    tags = dict(struct.unpack_from("<QQ", data, dynamic + 16 * index) for index in range(9))
    strings, table = tags[5], tags[6]
    found = {}
    for index in range(1, len(NAMES) + 2):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, table + 24 * index)
        found[data[strings + name : data.index(b"\0", strings + name)].decode()] = value
    return found


def jump_target(data: bytes, at: int) -> int:
    """The address from which `adrp x16; ldr x16, [x16, #low]; br x16` takes its target."""
    adrp, ldr, branch = struct.unpack_from("<III", data, at)
    assert (adrp & 0x9F00001F, ldr & 0xFFC003FF, branch) == (0x90000010, 0xF9400210, 0xD61F0200)
    pages = (adrp >> 29 & 3) | (adrp >> 5 & 0x7FFFF) << 2
    return (at & ~0xFFF) + (pages << 12) + (ldr >> 10 & 0xFFF) * 8
