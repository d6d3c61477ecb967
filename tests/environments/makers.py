"""Makes environments and archives for tests: small, whole, and accepted by the real conda-pack.

An environment is a copy of an interpreter with as much of its standard library as our probes import, a stand-in for
numpy, and records in `conda-meta` that name its files. No network, no pip, about a second.
"""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

STAND_IN = '__version__ = "0.0.stand-in"\n'
_NEVER_COPIED = (
    *("site-packages", "test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "pydoc_data"),
    *("config-*", "*test*.so", "_codecs_*", "_tkinter*", "turtle*", "*.opt-?.pyc"),
)
# Half of the standard library, which no test uses.
_LEFT_OUT = (
    *_NEVER_COPIED,
    *("asyncio", "xml", "xmlrpc", "wsgiref", "curses", "sqlite3", "distutils", "multiprocessing", "dbm"),
    *("unittest", "*test*.so", "_codecs_*", "_tkinter*", "_pyrepl", "mailbox*", "turtle*", "pydoc*", "_pydecimal*"),
    *("cgi*", "nntplib*", "smtplib*", "smtpd*", "imaplib*", "ftplib*", "telnetlib*", "poplib*", "aifc*", "sunau*"),
    *("xdrlib*", "sndhdr*", "imghdr*", "pstats*", "pickletools*", "_pyio*", "plistlib*", "__phello__*", "*.chm"),
    *("email", "http", "html", "zoneinfo", "cp[0-35-9]*", "iso*", "mac_*", "koi8*", "*.opt-?.pyc", "_decimal*.so"),
    *(
        "_sqlite3*.so",
        "pyexpat*.so",
        "unicodedata*.so",
        "_asyncio*.so",
        "audioop*.so",
        "_curses*.so",
        "_elementtree*.so",
    ),
)
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"


@functools.cache
def base_interpreters() -> dict[str, Path]:
    """Prefixes of interpreters to copy by their first two numbers, at least the running one's."""
    found = {platform.python_version_tuple()[0] + "." + platform.python_version_tuple()[1]: Path(sys.base_prefix)}
    for prefix in sorted(_PYENV.glob("3.*")):
        number = re.match(r"3\.(\d+)\.", prefix.name)
        if number and int(number[1]) >= 8 and (prefix / "bin" / f"python3.{number[1]}").exists():
            found[f"3.{number[1]}"] = prefix
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


def other_minor() -> str:
    """A version to test with: another than the running one if the machine has one."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    return next((minor for minor in reversed(base_interpreters()) if minor != own), own)


def make_environment(
    prefix: Path, minor: str, *, numpy: bool = True, conda: bool = False, also: Iterable[str] = (), whole: bool = False
) -> Path:
    """Make a whole environment in a new folder and return it.

    Args:
        prefix: The folder.
        minor: The version of its Python, as `3.12`.
        numpy: Whether it has a stand-in for numpy.
        conda: Whether it has the records of a conda environment.
        also: Packages of the standard library to copy that are otherwise left out.
        whole: Whether to copy all of the standard library but its tests and programs.
    """
    base = base_interpreters()[minor]
    library = prefix / "lib" / f"python{minor}"
    (prefix / "bin").mkdir(parents=True)
    _copy_files(base, prefix, minor, shutil.ignore_patterns(*(_NEVER_COPIED if whole else _LEFT_OUT)))
    for name in ("python3", "python"):
        (prefix / "bin" / name).symlink_to(f"python{minor}")
    if numpy:
        package = library / "site-packages" / "numpy"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(STAND_IN)
    else:
        (library / "site-packages").mkdir()
    _write_prefix_bearers(prefix)
    for package in also:
        if (base / "lib" / library.name / package).is_dir():
            ignored = shutil.ignore_patterns("test", "tests")
            shutil.copytree(base / "lib" / library.name / package, library / package, ignore=ignored)
    run(prefix / "bin" / "python", "-m", "compileall", "-q", str(library))
    if conda:
        _record(prefix, minor)
    return prefix


def _copy_files(base: Path, prefix: Path, minor: str, ignored: Callable[[Any, list[str]], Iterable[str]]) -> None:
    library = prefix / "lib" / f"python{minor}"
    # With the bytecode that lies there: it stays valid, because times are copied.
    shutil.copytree(base / "lib" / f"python{minor}", library, ignore=ignored)
    shutil.copy2(base / "bin" / f"python{minor}", prefix / "bin")
    for path in (base / "lib").glob(f"libpython{minor}.so*"):
        shutil.copy2(path, prefix / "lib", follow_symlinks=False)
    for folder, relative in ((prefix / "bin", "../lib"), (prefix / "lib", "."), (library / "lib-dynload", "../..")):
        for path in folder.glob("*"):
            if path.is_file() and not path.is_symlink():
                _look_beside(path, base / "lib", relative)
    strip_symbols([*(prefix / "lib").glob("*.so.*"), *(library / "lib-dynload").glob("*.so")])


def strip_symbols(binaries: Iterable[Path]) -> None:
    """Remove the symbols for debuggers, which are most bytes of some libraries, if this machine has `strip`."""
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", *map(str, binaries)], check=True)


def _look_beside(path: Path, old: Path, relative: str) -> None:
    """Overwrite the absolute folder in which a binary looks for libpython by one relative to itself."""
    data, absolute = path.read_bytes(), os.fsencode(old) + b"\0"
    own = os.fsencode(f"$ORIGIN/{relative}")
    if data[:4] == b"\x7fELF" and absolute in data and len(own) < len(absolute):
        path.write_bytes(data.replace(absolute, own.ljust(len(absolute), b"\0"), 1))


def _write_prefix_bearers(prefix: Path) -> None:
    """A text file and a script that hold the prefix, as packages have them."""
    (prefix / "etc").mkdir()
    (prefix / "etc" / "where.txt").write_text(f"installed in {prefix}\n")
    script = prefix / "bin" / "where"
    script.write_text(f"#!{prefix}/bin/python\nimport sys\nprint(sys.prefix)\n")
    script.chmod(0o755)


def _record(prefix: Path, minor: str) -> None:
    """What conda-pack reads: every file belongs to one package, whose cache is gone."""
    files = sorted(
        str(Path(folder, name).relative_to(prefix)) for folder, _, names in os.walk(prefix) for name in names
    )
    meta = prefix / "conda-meta"
    meta.mkdir()
    (meta / "history").write_text("")
    record = {
        "name": "python",
        "version": f"{minor}.0",
        "url": "file:///nowhere",
        "files": files,
        "link": {"source": ""},
    }
    (meta / f"python-{minor}.0-0.json").write_text(json.dumps(record))


def run(python: Path, *arguments: str) -> str:
    """What an interpreter prints, started with next to no variables."""
    done = subprocess.run(
        [str(python), "-I", *arguments], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def conda_pack(prefix: Path, output: Path, *options: str) -> Path:
    """Pack with the real conda-pack."""
    done = subprocess.run(
        [sys.executable, "-m", "conda_pack.cli", "-q", "-p", str(prefix), "-o", str(output), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return output


def pack_plainly(prefix: Path, output: Path) -> Path:
    """Pack a folder's content with tarfile, without compression: tests of codecs are elsewhere."""
    with tarfile.open(output, "w") as archive:
        archive.add(prefix, ".")
    return output


def write_tar(output: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    """Write an archive of exactly these members."""
    with tarfile.open(output, mode) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return output


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    """The header of a member."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, target, mode, 1_000_000_000
    return info
