"""Library paths become relative in ELF files of any prefix, and never longer."""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

import pytest
from building.elves import RPATH, RUNPATH, write_elf

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.elf import overwrite_search_path, read_dynamic_section
from naiad_building import relocation
from naiad_building.base_interpreter import BaseInterpreter, copy_base
from naiad_building.relocation import relative_search_path, relocate_binaries, relocate_texts


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


@pytest.mark.parametrize("tag", [RUNPATH, RPATH])
def test_every_elf_file_of_a_prefix_looks_beside_itself_afterwards(tmp_path: Path, tag: int) -> None:
    executable = write_elf(tmp_path / "bin" / "python3.12", "/opt/py/3.12/lib", tag=tag)
    library = write_elf(tmp_path / "lib" / "libpython3.12.so.1.0", "/opt/py/3.12/lib", tag=tag)
    foreign = write_elf(tmp_path / "lib" / "libother.so", "/usr/lib/other", tag=tag)
    library.chmod(0o555)
    size = executable.stat().st_size
    relocate_binaries(tmp_path, (Path("/opt/py/3.12"),))
    assert _search_path(executable) == "$ORIGIN/../lib"
    assert _search_path(library) == "$ORIGIN"
    assert _search_path(foreign) == "/usr/lib/other"
    assert executable.stat().st_size == size


def test_the_rest_of_the_file_stays_as_it_was(tmp_path: Path) -> None:
    file = write_elf(tmp_path / "a.so", "/opt/py/3.12/lib", needed=("libpython3.12.so.1.0", "libc.so.6"))
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
    file = write_elf(tmp_path / "bin" / "python3", "/py/lib")
    with pytest.raises(ExecutionEnvironmentError, match=r"has room for 7 bytes and '\$ORIGIN/\.\./lib' needs 14"):
        relocate_binaries(tmp_path, (Path("/py"),))
    assert _search_path(file) == "/py/lib"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + bytes(100)])
def test_other_files_are_no_elf_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_dynamic_section(tmp_path / "file") is None


def test_a_truncated_elf_file_is_left_alone(tmp_path: Path) -> None:
    whole = write_elf(tmp_path / "whole.so", "/opt/py/3.12/lib").read_bytes()
    for length in range(6, len(whole), 7):
        (tmp_path / "part.so").write_bytes(whole[:length])
        section = read_dynamic_section(tmp_path / "part.so")
        assert section is None or section.search_path == "/opt/py/3.12/lib"


def test_texts_get_the_new_prefix_and_binaries_do_not(tmp_path: Path) -> None:
    text, binary = tmp_path / "Makefile", tmp_path / "cache.pyc"
    text.write_text("prefix = /opt/py\nother = /opt/pyx\n")
    text.chmod(0o444)
    binary.write_bytes(b"\0/opt/py")
    large, link = tmp_path / "large", tmp_path / "link"
    large.write_bytes(b"/opt/py".ljust(relocation._LARGEST_TEXT + 1))
    link.symlink_to(text)
    relocate_texts(iter([link]), Path("/opt/py"), Path("/new"))
    assert "/opt/py\n" in text.read_text()
    relocate_texts(iter([text, binary, large]), Path("/opt/py"), Path("/new"))
    assert text.read_text().startswith("prefix = /new\n")
    assert text.stat().st_mode & 0o200
    assert binary.read_bytes() == b"\0/opt/py"
    assert large.read_bytes().startswith(b"/opt/py")


def test_an_interpreter_is_copied_with_the_files_of_its_prefix_that_it_needs_and_no_others(tmp_path: Path) -> None:
    """As with conda's: a static executable whose extension modules need libraries of its prefix."""
    origin, prefix = tmp_path / "origin", tmp_path / "copy"
    stdlib = origin / "lib" / "python3.12"
    write_elf(origin / "bin" / "python3.12", "$ORIGIN/../lib", needed=("libc.so.6",))
    write_elf(stdlib / "lib-dynload" / "_ssl.so", "$ORIGIN/../..", needed=("libssl.so.3",))
    write_elf(stdlib / "lib-dynload" / "_testcapi.so", "", needed=("libunwanted.so",))
    write_elf(origin / "lib" / "libssl.so.3", f"{origin}/lib", needed=("libcrypto.so.3",))
    for name in ("libcrypto.so.3", "libunwanted.so", "libtk.so"):
        write_elf(origin / "lib" / name, "")
    for name in ("os.py", "site-packages/numpy.py", "test/regrtest.py", "email/test.py", "json/tests/t.py"):
        (stdlib / name).parent.mkdir(parents=True, exist_ok=True)
        (stdlib / name).touch()
    prefix.mkdir()
    copy_base(
        BaseInterpreter(origin / "bin" / "python3.12", "3.12.1", origin, stdlib, origin / "include", "cpython-312"),
        prefix,
    )
    copied = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    assert copied == {
        *("bin/python", "bin/python3", "bin/python3.12", "lib/libssl.so.3", "lib/libcrypto.so.3"),
        *("lib/python3.12/os.py", "lib/python3.12/email/test.py", "lib/python3.12/lib-dynload/_ssl.so"),
    }
    assert _search_path(prefix / "lib" / "libssl.so.3") == "$ORIGIN"
    assert _search_path(prefix / "lib" / "python3.12" / "lib-dynload" / "_ssl.so") == "$ORIGIN/../.."


def test_bytecode_of_the_original_is_not_copied(tmp_path: Path) -> None:
    """It has paths of the original, and what is imported adds to it: archives of two builds would differ."""
    origin, prefix = tmp_path / "origin", tmp_path / "copy"
    stdlib, tag = origin / "lib" / "python3.12", sys.implementation.cache_tag or ""
    write_elf(origin / "bin" / "python3.12", "", needed=("libc.so.6",))
    stdlib.mkdir(parents=True)
    (stdlib / "os.py").write_text("")
    py_compile.compile(str(stdlib / "os.py"))
    prefix.mkdir()

    copy_base(BaseInterpreter(origin / "bin" / "python3.12", "3.12.1", origin, stdlib, origin / "include", tag), prefix)

    assert not list(prefix.rglob("*.pyc"))
