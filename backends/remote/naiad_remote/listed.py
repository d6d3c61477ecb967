"""Targets from a list of servers, as that of servers on Ray: those on this node are called before all others."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from typing import Any, Callable, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import triton_python_backend_utils as pb_utils

from naiad_remote.errors import CallError, Cause
from naiad_remote.settings import Settings, Target, listed_target
from naiad_remote.wire import WireResponse

NODE_VARIABLE = "NAIAD_RAY_NODE"  # environment variable: id of the node that this server runs on, as in the list
_REFRESH_SECONDS = 1.0
_READ_SECONDS = 5.0
_MAX_BYTES = 16 * 2**20


class Listed(NamedTuple):
    """Ready servers."""

    targets: Tuple[Target, ...] = ()  # in an order that does not depend on the list's
    near: FrozenSet[int] = frozenset()  # indices of those on this node


def read_list(given: Settings, node: str) -> Listed:
    """Read the list of servers; *node* is the id of this node, empty if it has none. CallError if that fails."""
    try:
        # The settings have admitted no other scheme than http and https.
        with urllib.request.urlopen(given.servers, timeout=_READ_SECONDS) as response:  # noqa: S310 - the scheme was checked
            return parse_list(response.read(_MAX_BYTES), given, node)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CallError(Cause.CONNECT, f"cannot read the list of servers {given.servers}: {reason}") from error


def parse_list(content: bytes, given: Settings, node: str) -> Listed:
    """The ready servers of a list; ValueError if it is not a list of servers."""
    port = "grpc" if given.servers_port.startswith("grpc") else given.servers_port
    found: List[Tuple[str, bool, Target]] = []
    try:
        for each in json.loads(content):
            address = each["addresses"].get(port)
            if each["ready"] and address:
                found.append((address, bool(node) and each["node"] == node, listed_target(address, given)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a list of servers: {error!r}") from error
    found.sort(key=lambda each: each[0])
    near = frozenset(index for index, (_, is_near, _) in enumerate(found) if is_near)
    return Listed(tuple(target for _, _, target in found), near)


class ListedCaller:
    """Calls the servers of a list, which is read again each second; used as `Caller`.

    Breakers and connections begin again when the list changes. The last list is kept while it cannot be read.
    """

    def __init__(self, given: Settings, node: str, connect: Callable[[Listed], Any]) -> None:
        self._given = given
        self._node = node  # id of this node; empty if it has none
        self._connect = connect  # makes the `Caller` of some targets
        self._lock = threading.Lock()
        self._current: Optional[_Shared] = None
        self._listed = Listed()
        self._problem = ""
        self._closing = threading.Event()
        self._refresh()
        self._thread = threading.Thread(target=self._refresh_always, name="remote-list", daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        with self._lock:
            current = self._current
        return current is not None and bool(current.caller.is_ready())

    def call(self, *args: Any, **options: Any) -> Iterator[WireResponse]:
        """As `Caller.call`; CallError also if no server is ready."""
        with self._lock:
            current = self._current
            if current is None:
                text = self._problem or f"{self._given.servers} lists no ready server"
                raise CallError(Cause.BLOCKED, f"cannot call a remote model: {text}")
            current.users += 1
        try:
            yield from current.caller.call(*args, **options)
        finally:
            self._leave(current)

    def close(self) -> None:
        """Close the connections; no call may be in flight."""
        self._closing.set()
        self._thread.join()
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            self._leave(current)

    def _refresh_always(self) -> None:
        while not self._closing.wait(_REFRESH_SECONDS):
            self._refresh()

    def _refresh(self) -> None:
        try:
            listed = read_list(self._given, self._node)
        except CallError as error:
            if not self._problem:
                pb_utils.Logger.log_warn(f"{error.text}; the last list stays in use")
            self._problem = error.text
            return
        self._problem = ""
        if listed == self._listed:
            return
        new = _Shared(self._connect(listed)) if listed.targets else None
        self._listed = listed
        with self._lock:
            old, self._current = self._current, new
        pb_utils.Logger.log_info(f"{self._given.servers} lists {_describe(listed)}")
        if old is not None:
            self._leave(old)

    def _leave(self, shared: _Shared) -> None:
        """Close the connections of a former list when its last call has ended."""
        with self._lock:
            shared.users -= 1
            is_last = shared.users == 0
        if is_last:
            shared.caller.close()


class _Shared:
    """The caller of one list, and its users: calls in flight, and one more while the list is current."""

    def __init__(self, caller: Any) -> None:
        self.caller = caller
        self.users = 1


def _describe(listed: Listed) -> str:
    names: Sequence[str] = [
        f"{target.address}{' (this node)' if index in listed.near else ''}"
        for index, target in enumerate(listed.targets)
    ]
    return ", ".join(names) or "no ready server"
