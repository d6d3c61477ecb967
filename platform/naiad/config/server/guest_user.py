"""`--guest-user`: the user under whose id guests run, or a user for each model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from naiad.config.server.flag_values import FlagValues

_T = TypeVar("_T")
_K = TypeVar("_K")
_FORM = re.compile(r"(?P<user>[^:]+)(?::(?P<group>[^:]+))?")
_AUTO = re.compile(r"auto(?::(?P<first>[0-9]{1,10})-(?P<last>[0-9]{1,10}))?")
# Numbers that no system gives to users: systemd's list of ranges has this one as unused, and it is within the 65,536
# numbers that containers usually have (https://systemd.io/UIDS-GIDS).
_UNUSED = (60706, 61183)
_LARGEST = (1 << 32) - 2
_MAPS = ("/proc/self/uid_map", "/proc/self/gid_map")
# By their number (capabilities(7)). Without CAP_KILL the server could start such guests and not end them.
_CAPABILITIES = {5: "CAP_KILL", 6: "CAP_SETGID", 7: "CAP_SETUID"}


@dataclass(frozen=True)  # without slots, which have no room for the weak references of `guests.guest_users`
class GuestUser:
    """A user and a group."""

    uid: int
    gid: int  # its group id; guests have no other groups
    name: str = ""  # its name; "" if the system has no name for it
    home: str = "/"  # its home directory; "/" if the system knows none

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid}, gid {self.gid})" if self.name else f"uid {self.uid}, gid {self.gid}"


@dataclass(frozen=True, slots=True)
class GuestUserRange:
    """Numbers of users and groups, one for each model; *last* is inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"uids {self.first} to {self.last}"


def parse_guest_user(values: FlagValues, flag: str) -> GuestUser | GuestUserRange | None:
    """The value of a flag `NAME|UID[:GROUP|GID]` or `auto[:FIRST-LAST]`; None without one.

    Without the rights to switch, the server's own user is accepted and gives None: nothing is to be switched.
    """
    text = values.text(flag)
    if not text:
        return None
    auto = _AUTO.fullmatch(text)
    user = _parse_user(values, flag, text) if auto is None else _parse_range(values, flag, auto)
    if missing := _missing_capabilities():
        if isinstance(user, GuestUser) and (user.uid, user.gid) == (os.geteuid(), os.getegid()):
            return None
        raise values.invalid(
            flag, f"this server may not run guests as {user}: start it as root, or give it {', '.join(missing)}"
        )
    for file in _MAPS:
        if isinstance(user, GuestUserRange) and not _is_mapped(file, user):
            raise values.invalid(
                flag, f"{file} maps not all of {user}: name numbers that it maps, as in --{flag}=auto:1000-1999"
            )
    return user


def _parse_user(values: FlagValues, flag: str, text: str) -> GuestUser:
    match = _FORM.fullmatch(text)
    if match is None:
        raise values.invalid(
            flag, f"'{text}' is not a user such as nobody, 65534 or 1000:1000, nor auto or auto:60706-61183"
        )
    user = _find_user(match["user"])
    if user is None:
        raise values.invalid(flag, f"this system has no user '{match['user']}'; give a name it has, or a number")
    if match["group"] is None:
        return user
    gid = _find_group(match["group"])
    if gid is None:
        raise values.invalid(flag, f"this system has no group '{match['group']}'; give a name it has, or a number")
    return replace(user, gid=gid)


def _parse_range(values: FlagValues, flag: str, match: re.Match[str]) -> GuestUserRange:
    first, last = (int(match["first"]), int(match["last"])) if match["first"] else _UNUSED
    if not 0 < first <= last <= _LARGEST:
        raise values.invalid(
            flag, f"'{match[0]}' is not a range of users from 1 to {_LARGEST}, such as auto:60706-61183"
        )
    return GuestUserRange(first, last)


def _is_mapped(file: str, numbers: GuestUserRange) -> bool:
    """Whether this process's user namespace has all *numbers*; where the system does not say so, it has."""
    try:
        lines = [line.split() for line in Path(file).read_text().splitlines()]
    except OSError:
        return True
    mapped = sum(
        max(0, min(int(start) + int(count) - 1, numbers.last) - max(int(start), numbers.first) + 1)
        for start, _, count in lines
    )
    return mapped == numbers.last - numbers.first + 1


def _find_user(text: str) -> GuestUser | None:
    import pwd  # here: few servers need it

    entry = _found(pwd.getpwnam, text) or (_found(pwd.getpwuid, int(text)) if text.isdigit() else None)
    if entry is not None:
        return GuestUser(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir or "/")
    # Containers often run under numbers that their /etc/passwd does not have.
    return GuestUser(int(text), int(text)) if text.isdigit() else None


def _find_group(text: str) -> int | None:
    import grp

    entry = _found(grp.getgrnam, text)
    if entry is not None:
        return int(entry.gr_gid)
    return int(text) if text.isdigit() else None


def _found(find: Callable[[_K], _T], key: _K) -> _T | None:
    try:
        return find(key)
    except (KeyError, OverflowError):
        return None


def _missing_capabilities() -> list[str]:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return [] if os.geteuid() == 0 else list(_CAPABILITIES.values())
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return [name for number, name in _CAPABILITIES.items() if not effective >> number & 1]
