"""The responses that clients may retrieve and continue, in memory, the most recently used ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

STORED_BYTES = 64 << 20  # of all responses that are kept
_OVERHEAD = 1024  # bytes that a response counts in addition to its texts: for its objects


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response that was sent."""

    owner: bytes  # the API key of its client; b"" without keys. Other clients cannot see it
    document: bytes
    items: str
    # The conversation up to this response, without instructions: parts of a list in JSON. Responses of one
    # conversation share the parts.
    messages: tuple[str, ...]
    # The ids of the items of its input and output, by which later inputs may refer to them.
    item_ids: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """An upper bound of its bytes: shared parts count in each response."""
        return _OVERHEAD + len(self.document) + len(self.items) + sum(map(len, (*self.messages, *self.item_ids)))


class StoredResponses(Protocol):
    """Responses that were stored, in this process or in another one of the server."""

    def add(self, response_id: str, response: StoredResponse) -> bool:
        """Keep a response; return False if it alone exceeds the bounds."""

    def find(self, response_id: str, owner: bytes) -> StoredResponse | None:
        """A client's response; None if it is unknown, dropped, or another client's."""

    def find_item(self, item_id: str, owner: bytes) -> dict[str, Any] | None:
        """An item of the input or output of one of a client's responses; None if there is none."""

    def remove(self, response_id: str, owner: bytes) -> bool:
        """Drop a client's response; return False if it does not exist."""


class ResponseStore:
    """Keeps responses within bounds: the least recently used ones are dropped."""

    def __init__(self, max_count: int, max_bytes: int = STORED_BYTES) -> None:
        """An empty store; a response that is larger than *max_bytes* is not kept."""
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._by_item: dict[str, str] = {}  # the response that has an item, the latest one
        self.size = 0

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, response_id: str, response: StoredResponse) -> bool:
        if not self._max_count or response.size > self._max_bytes:
            return False
        self._responses[response_id] = response
        self.size += response.size
        self._by_item.update(dict.fromkeys(response.item_ids, response_id))
        while len(self._responses) > self._max_count or self.size > self._max_bytes:
            self._drop(next(iter(self._responses)))
        return True

    def find(self, response_id: str, owner: bytes) -> StoredResponse | None:
        found = self._responses.get(response_id)
        if found is None or found.owner != owner:
            return None
        self._responses.move_to_end(response_id)
        return found

    def find_item(self, item_id: str, owner: bytes) -> dict[str, Any] | None:
        found = self.find(self._by_item.get(item_id, ""), owner)
        if found is None:
            return None
        items: list[dict[str, Any]] = [*orjson.loads(found.document)["output"], *orjson.loads(found.items)]
        return next((item for item in items if item.get("id") == item_id), None)

    def remove(self, response_id: str, owner: bytes) -> bool:
        if self.find(response_id, owner) is None:
            return False
        self._drop(response_id)
        return True

    def _drop(self, response_id: str) -> None:
        dropped = self._responses.pop(response_id)
        self.size -= dropped.size
        for item_id in dropped.item_ids:
            if self._by_item.get(item_id) == response_id:
                del self._by_item[item_id]


class RemoteResponses:
    """Implements `StoredResponses` in a process beside the coordinator, which keeps them for all processes."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        """Responses that the coordinator keeps; *ask* calls one of its functions by name and returns the result."""
        self._ask = ask

    def add(self, response_id: str, response: StoredResponse) -> bool:
        """See `StoredResponses`. It returns once the coordinator has the response, which the client gets after that."""
        return bool(self._ask("store_response", response_id, response))

    def find(self, response_id: str, owner: bytes) -> StoredResponse | None:
        found: StoredResponse | None = self._ask("find_response", response_id, owner)
        return found

    def find_item(self, item_id: str, owner: bytes) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._ask("find_response_item", item_id, owner)
        return found

    def remove(self, response_id: str, owner: bytes) -> bool:
        return bool(self._ask("remove_response", response_id, owner))
