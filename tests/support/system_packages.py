"""Programs of the system that some tests need, and the packages of Debian that bring them.

`make system-packages` runs this file before anything is installed, so it imports pytest only for tests.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
"""Where programs are looked for: daemons are in `/usr/sbin`, which is not on every user's PATH."""
_LACKING = "not installed: "


@dataclass(frozen=True)
class _Package:
    """What brings programs: packages of Debian, and whether what they recommend is installed along."""

    names: tuple[str, ...]
    recommends: bool = False


_PACKAGES = {
    # Native backends are compiled; the page is opened in a real browser; code for aarch64 runs in an emulator.
    "cc": _Package(("gcc", "libc6-dev")),
    "c++": _Package(("g++",)),
    "readelf": _Package(("binutils",)),
    "chromium": _Package(("chromium",), recommends=True),
    "chromedriver": _Package(("chromium-driver",), recommends=True),
    "curl": _Package(("curl",)),
    "qemu-aarch64": _Package(("qemu-user", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross")),
    # Servers restart behind real proxies.
    "nginx": _Package(("nginx-light",), recommends=True),
    "haproxy": _Package(("haproxy",), recommends=True),
    # Repositories are copied by other programs, images are read, certificates are made.
    "docker-registry": _Package(("docker-registry",), recommends=True),
    "skopeo": _Package(("skopeo",)),
    "umoci": _Package(("umoci",), recommends=True),
    "mksquashfs": _Package(("squashfs-tools",), recommends=True),
    "openssl": _Package(("openssl",)),
    "gdb": _Package(("gdb",)),
    # Interpreters of other kinds are refused or used.
    "pypy3": _Package(("pypy3",)),
    "python3-dbg": _Package(("python3-dbg",)),
}


@functools.cache
def program(name: str) -> str | None:
    """The path of a program of the table; None if it is not installed."""
    assert name in _PACKAGES, name
    return shutil.which(name, path=_PATH)


def lacking(*names: str) -> str:
    """Why a test that needs these programs is skipped; "" if all are installed."""
    absent = [name for name in names if program(name) is None]
    return f"{_LACKING}{', '.join(absent)}" if absent else ""


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark for tests that need programs of the system; without them they are skipped and counted in the last line."""
    import pytest

    reason = lacking(*names)
    return pytest.mark.skipif(bool(reason), reason=reason)


def require(name: str) -> str:
    """The path of a program that the running test needs; skips the test if it is not installed."""
    import pytest

    return program(name) or pytest.skip(lacking(name))


def summary(reasons: Iterable[str]) -> str:
    """What the last line of a run says of its skipped tests, from their reasons; "" if all programs were there."""
    lists = [reason.partition(_LACKING)[2].split(", ") for reason in reasons if _LACKING in reason]
    counts = Counter(name for names in lists for name in names)
    absent = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
    return f"{len(lists)} tests skipped for want of {absent}; run `make system-packages` as root" if counts else ""


def _install() -> str:
    """Install what is absent with apt; why it cannot be done, or ""."""
    absent = [name for name in _PACKAGES if program(name) is None]
    if not absent:
        return ""
    packages = " ".join(package for name in absent for package in _PACKAGES[name].names)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"cannot install {', '.join(absent)}: that takes root and apt; install {packages}"
    # Daemons must not serve anything of their own here: RUNLEVEL=1 keeps them from being started.
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["apt-get", "update"], env=environ, check=False, **output)
    for package in (_PACKAGES[name] for name in absent):
        options = [] if package.recommends else ["--no-install-recommends"]
        command = ["apt-get", "install", "-y", *options, *package.names]
        subprocess.run(command, env=environ, check=False, **output)
    program.cache_clear()
    failed = [name for name in absent if program(name) is None]
    return f"cannot install {', '.join(failed)}: the tests that need them are skipped" if failed else ""


if __name__ == "__main__":
    problem = _install()
    if problem and "--where-possible" not in sys.argv:
        sys.exit(problem)
