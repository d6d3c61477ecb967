"""Creates and removes an entry of a store again and again, each time with a fault at another file operation.

    python -m environments.store.interrupted FOLDER OPERATION FAULT

OPERATION is `unpack`, `build` or `remove`. FAULT says what happens at the file operation whose turn it is: `kill` ends the
process, `full` fails the operation as a full disk does (which is no
reason to keep what is to be removed), `slow` stops the process until another server has waited for it, and
`slow-kill` ends it then. Prints what is wrong, a line for each; nothing for a store that held.

Each attempt is a fork of this process, which has no other thread. File operations are the events of Python's audit hooks with
a path in the store (PEP 578): every file that is opened, and folders, links, renames and removals.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from environments.makers import member, write_tar
from environments.store.made import start_nothing, write_environment

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.progress import LogReporter
from naiad.environments.store.eviction import remove_entry
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.store import Store

_DIGEST = "b" * 64
_FILES = {"etc/file": b"x" * 5000, "lib/deep/er/file": b"y", "lib/other": b""}
_ENDED, _REFUSED, _WRONG, _KILLED = 0, 3, 4, 9
_SECONDS = 60
_REMOVING = {"os.remove", "os.rmdir"}
_ADDING = {"os.mkdir", "os.link", "os.symlink"}
"""What a full disk refuses, with new files; it takes renames."""
_LIMIT = 1000
"""More file operations than any of the three has."""


class _Hook:
    """Counts the file operations of this process below a folder, and does something at one of them."""

    def __init__(self, root: Path, at: int, act: Callable[[], None], *, only_additions: bool) -> None:
        self._root, self._at, self._act, self._only_additions = str(root), at, act, only_additions
        self._count = 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            counts = not self._only_additions or not Path(str(arguments[0])).exists()
        else:
            counts = event in _ADDING or (not self._only_additions and event.startswith(("os.", "shutil.")))
        if not counts:
            return
        names = [str(each) for each in arguments if isinstance(each, (str, os.PathLike))]
        # What is removed with a whole folder is named in the folder that is open, so without its path.
        if any(name.startswith(self._root) or (event in _REMOVING and "/" not in name) for name in names):
            self._count += 1
            if self._count == self._at:
                self._act()


def main() -> None:
    folder, operation, fault = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    start_nothing(pytest.MonkeyPatch())
    archive = write_tar(folder / "e.tar", [(member(name), content) for name, content in _FILES.items()], "w")
    for at in range(1, _LIMIT):
        root = folder / str(at)
        if operation == "remove":
            _create(root, archive, operation)
        problems, has_happened = _attempt(root, archive, operation, fault, at)
        for problem in problems:
            print(f"{operation}, {fault} at file operation {at}: {problem}")
        shutil.rmtree(root, ignore_errors=True)
        if not has_happened:
            return
    print(f"{operation} has more than {_LIMIT} file operations")


def _create(root: Path, archive: Path, operation: str) -> str:
    """The digest of the entry, which is complete."""
    store = Store(root, LogReporter())
    if operation == "build":
        made = store.get_or_build(_DIGEST, lambda staged, _: write_environment(staged, _FILES), origin="script.py")
    else:
        made = store.get_or_unpack(archive, store.identify(archive))
    found = {str(path.relative_to(made.prefix)): path.read_bytes() for path in made.prefix.rglob("*") if path.is_file()}
    assert found == {"bin/python": b"", **_FILES}, f"the environment has {sorted(found)}"
    return made.digest


def _run(root: Path, archive: Path, operation: str) -> None:
    if operation == "remove":
        store = Store(root, LogReporter())
        remove_entry(store, EntryLeases(root), store.identify(archive).digest)
    else:
        _create(root, archive, operation)


def _forked(act: Callable[[], object]) -> int:
    """The process id of a fork that does *act*, and ends with a code for how that ended."""
    pid = os.fork()
    if not pid:
        code = _WRONG
        try:
            act()
            code = _ENDED
        except ExecutionEnvironmentError:
            code = _REFUSED
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def _code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _attempt(root: Path, archive: Path, operation: str, fault: str, at: int) -> tuple[list[str], bool]:
    """What is wrong after a fault at that file operation, and whether there is such an operation."""
    reader, writer = os.pipe()

    def act() -> None:
        os.write(writer, b"!")
        if fault == "kill":
            os._exit(_KILLED)
        if fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.kill(os.getpid(), signal.SIGSTOP)

    def faulty() -> None:
        sys.addaudithook(_Hook(root, at, act, only_additions=fault == "full"))
        _run(root, archive, operation)

    first = _forked(faulty)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        if fault.startswith("slow"):
            if not said.read(1):  # it has ended
                assert _code_of(first) == _ENDED
                return [], False
            os.waitpid(first, os.WUNTRACED)
            problems = _beside(first, root, archive, operation, is_killed=fault == "slow-kill")
        else:
            code = _code_of(first)
            if not said.read(1):
                return ([] if code == _ENDED else [f"without a fault it ended with {code}"]), False
            expected = {_KILLED} if fault == "kill" else {_ENDED} if operation == "remove" else {_ENDED, _REFUSED}
            problems = [] if code in expected else [f"it ended with {code}"]
    return problems + _problems_after(root, archive, operation), True


def _beside(first: int, root: Path, archive: Path, operation: str, *, is_killed: bool) -> list[str]:
    """Another server creates the entry; once it waits, or has ended, the first goes on."""
    reader, writer = os.pipe()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for" in record.getMessage():
                os.write(writer, b"!")

    def second() -> None:
        os.close(reader)
        logging.getLogger("naiad.environments").addHandler(Said())
        logging.getLogger("naiad.environments").setLevel(logging.INFO)
        _create(root, archive, operation)

    other = _forked(second)
    os.close(writer)
    select.select([reader], [], [], _SECONDS)  # it waits, or has ended
    os.close(reader)
    os.kill(first, signal.SIGKILL if is_killed else signal.SIGCONT)
    codes = _code_of(first), _code_of(other)
    expected = -signal.SIGKILL if is_killed else _ENDED
    return [] if codes == (expected, _ENDED) else [f"the two servers ended with {codes}"]


def _problems_after(root: Path, archive: Path, operation: str) -> list[str]:
    """What is wrong for a server that starts later."""

    def later() -> None:
        store = Store(root, LogReporter())
        for number in range(2):  # what was left is replaced, and then found
            digest = _create(root, archive, operation)
            store.remove_leftovers()
            entries = [path.name for path in root.iterdir() if len(path.name) == len(_DIGEST)]
            assert entries == [digest], f"{entries} are in the store at look {number}"
        staged = list((root / "staging").iterdir()) if (root / "staging").exists() else []
        assert not staged, f"{staged} are left"
        assert not store.find_leftovers()

    code = _code_of(_forked(later))
    return [] if code == _ENDED else [f"a later server ended with {code}"]


if __name__ == "__main__":
    main()
