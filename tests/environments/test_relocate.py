"""Library paths become relative in ELF files of any prefix, and never longer."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from naiad.environments.elf import overwrite_search_path, read_dynamic_section
from naiad.environments.relocate import relative_search_path, relocate_binaries, relocate_texts
from naiad.errors import ExecutionEnvironmentError

_RPATH, _RUNPATH = 15, 29
_HEADERS = 64 + 2 * 56


def _write_elf(path: Path, search_path: str, *, tag: int = _RUNPATH, needed: tuple[str, ...] = ("libc.so.6",)) -> Path:
    """The least that is an ELF file with a dynamic section: headers, that section, its strings."""
    strings, entries = b"\0", []
    for kind, text in ((tag, search_path), *((1, name) for name in needed)):
        entries.append((kind, len(strings)))
        strings += text.encode() + b"\0"
    size = 16 * (len(entries) + 2)
    # The file is mapped at 0x1000, so that an address mistaken for an offset shows.
    entries += [(5, 0x1000 + _HEADERS + size), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    total = _HEADERS + size + len(strings)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, total, total, 0x1000)
    section = struct.pack("<IIQQQQQQ", 2, 6, _HEADERS, 0x1000 + _HEADERS, 0, size, size, 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + section + dynamic + strings)
    return path


def _search_path(path: Path) -> str:
    section = read_dynamic_section(path)
    assert section is not None
    return section.search_path


@pytest.mark.parametrize(
    ("search_path", "folder", "relative"),
    [
        ("/opt/py/3.12/lib", "bin", "$ORIGIN/../lib"),
        ("/opt/py/3.12/lib", "lib", "$ORIGIN"),
        ("/opt/py/3.12/lib/", "lib/python3.12/lib-dynload", "$ORIGIN/../.."),
        ("/usr/lib64:/opt/py/3.12/lib", "bin", "/usr/lib64:$ORIGIN/../lib"),
        ("/new/lib:/opt/py/3.12/lib", "bin", "$ORIGIN/../lib"),
        ("$ORIGIN/../lib:/opt/py/3.12-other/lib", "bin", "$ORIGIN/../lib:/opt/py/3.12-other/lib"),
    ],
)
def test_only_entries_inside_the_origin_become_relative(search_path: str, folder: str, relative: str) -> None:
    origins = (Path("/opt/py/3.12"), Path("/new"))
    assert relative_search_path(search_path, origins, folder=Path("/new", folder), prefix=Path("/new")) == relative


@pytest.mark.parametrize("tag", [_RUNPATH, _RPATH])
def test_every_elf_file_of_a_prefix_looks_beside_itself_afterwards(tmp_path: Path, tag: int) -> None:
    executable = _write_elf(tmp_path / "bin" / "python3.12", "/opt/py/3.12/lib", tag=tag)
    library = _write_elf(tmp_path / "lib" / "libpython3.12.so.1.0", "/opt/py/3.12/lib", tag=tag)
    foreign = _write_elf(tmp_path / "lib" / "libother.so", "/usr/lib/other", tag=tag)
    library.chmod(0o555)
    size = executable.stat().st_size
    assert relocate_binaries(tmp_path, (Path("/opt/py/3.12"),)) == 2
    assert _search_path(executable) == "$ORIGIN/../lib"
    assert _search_path(library) == "$ORIGIN"
    assert _search_path(foreign) == "/usr/lib/other"
    assert executable.stat().st_size == size


def test_the_rest_of_the_file_stays_as_it_was(tmp_path: Path) -> None:
    file = _write_elf(tmp_path / "a.so", "/opt/py/3.12/lib", needed=("libpython3.12.so.1.0", "libc.so.6"))
    section = read_dynamic_section(file)
    assert section is not None
    before = file.read_bytes()
    overwrite_search_path(file, section, "$ORIGIN")
    after = file.read_bytes()
    assert after == before.replace(b"/opt/py/3.12/lib", b"$ORIGIN".ljust(16, b"\0"))
    found = read_dynamic_section(file)
    assert found is not None
    assert found.needed == ("libpython3.12.so.1.0", "libc.so.6")


def test_a_path_without_room_is_refused_and_left(tmp_path: Path) -> None:
    file = _write_elf(tmp_path / "bin" / "python3", "/py/lib")
    with pytest.raises(ExecutionEnvironmentError, match=r"has room for 7 bytes and '\$ORIGIN/\.\./lib' needs 14"):
        relocate_binaries(tmp_path, (Path("/py"),))
    assert _search_path(file) == "/py/lib"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(100)])
def test_other_files_are_no_elf_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_dynamic_section(tmp_path / "file") is None


def test_a_truncated_elf_file_is_left_alone(tmp_path: Path) -> None:
    whole = _write_elf(tmp_path / "whole.so", "/opt/py/3.12/lib").read_bytes()
    for length in range(6, len(whole), 7):
        (tmp_path / "part.so").write_bytes(whole[:length])
        section = read_dynamic_section(tmp_path / "part.so")
        assert section is None or section.search_path == "/opt/py/3.12/lib"


def test_texts_get_the_new_prefix_and_binaries_do_not(tmp_path: Path) -> None:
    text, binary = tmp_path / "Makefile", tmp_path / "cache.pyc"
    text.write_text("prefix = /opt/py\nother = /opt/pyx\n")
    text.chmod(0o444)
    binary.write_bytes(b"\0/opt/py")
    assert relocate_texts(iter([text, binary]), Path("/opt/py"), Path("/new")) == 1
    assert text.read_text().startswith("prefix = /new\n")
    assert binary.read_bytes() == b"\0/opt/py"
