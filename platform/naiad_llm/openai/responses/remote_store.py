"""Stored responses of OpenAI's API, kept by the coordinator: a client may continue one in any process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from naiad_llm.openai.responses.store import StoredResponse


class RemoteResponses:
    """Implements `StoredResponses` in a process beside the coordinator."""

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
