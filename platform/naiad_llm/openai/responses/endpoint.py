"""`/v1/responses`: connects requests, stored responses, and the form of the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import parse_qs

import orjson

from naiad.frontends.http1.messages import HttpExchange, json_response, response
from naiad_llm.openai.answer_blocks import Answer
from naiad_llm.openai.block_form import BlockForm
from naiad_llm.openai.errors import NOT_FOUND, ApiError, wrong_method
from naiad_llm.openai.json_parts import dumps
from naiad_llm.openai.requests import TextRequest
from naiad_llm.openai.responses.form import ResponsesForm
from naiad_llm.openai.responses.request import ResponsesRequest, read_response_request
from naiad_llm.openai.responses.store import StoredResponse, StoredResponses
from naiad_llm.openai.submission import TextProtocol
from naiad_llm.openai.text_response import ResponseForm

logger = logging.getLogger("naiad.openai")

_OK = 200
_GET, _DELETE = "GET", "DELETE"
_MAX_PAGE = 100
_ITEMS, _CANCEL = "/input_items", "/cancel"


class ResponsesApi:
    """Handles requests below `/v1/responses`."""

    def __init__(self, store: StoredResponses, max_bytes: int, owner: Callable[[Mapping[bytes, bytes]], bytes]) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._owner = owner
        self.protocol = TextProtocol(read=read_response_request, begin=self._begin)

    def handle(self, exchange: HttpExchange, response_id: str, part: str) -> None:
        """Handle a request for a stored response, for the items of its input, or to cancel it, as *part* says."""
        method, is_input = exchange.request.method, part == _ITEMS
        if part == _CANCEL:
            self._reject_cancel(exchange, response_id)
        owner = self._owner(exchange.request.headers)
        if method == _DELETE and not is_input:
            if not self._store.remove(response_id, owner):
                raise _unknown(response_id)
            exchange.respond(json_response({"id": response_id, "object": "response", "deleted": True}))
            return
        if method not in {_GET, "HEAD"}:
            raise wrong_method(method, _GET if is_input else f"{_GET} or {_DELETE}")
        found = self._store.find(response_id, owner)
        if found is None:
            raise _unknown(response_id)
        if not is_input:
            if parse_qs(exchange.request.query.decode("latin-1")).get("stream") == ["true"]:
                raise ApiError("`stream` is not supported here: the response is complete", param="stream")
            exchange.respond(response(_OK, [found.document]))
            return
        exchange.respond(json_response(_page(orjson.loads(found.items), exchange.request.query)))

    def _reject_cancel(self, exchange: HttpExchange, response_id: str) -> NoReturn:
        if exchange.request.method != "POST":
            raise wrong_method(exchange.request.method, "POST")
        if self._store.find(response_id, self._owner(exchange.request.headers)) is None:
            raise _unknown(response_id)
        raise ApiError(
            "Cannot cancel a synchronous response: only those with `background` can be cancelled, which are not "
            "supported; close the connection to cancel a response that is being generated",
            param="response_id",
        )

    def _begin(self, exchange: HttpExchange, request: ResponsesRequest) -> tuple[TextRequest, ResponseForm]:
        owner = self._owner(exchange.request.headers)
        earlier = self._earlier(request, owner)
        request = request.with_items(partial(self._item, owner=owner))

        def on_answer(response_id: str, document: Mapping[str, Any], answer: Answer) -> None:
            if not request.is_stored:
                return
            # The answer is in both the document and the messages; one that is too long is not made in one piece.
            is_kept = 2 * answer.size <= self._max_bytes
            if is_kept:
                said = dumps(answer.message()).decode()
                messages = (*earlier, *filter(None, (request.messages,)), said)
                stored = StoredResponse(
                    owner=owner,
                    document=dumps(document),
                    items=request.items,
                    messages=messages,
                    item_ids=(*request.item_ids, *(item["id"] for item in document["output"])),
                )
                is_kept = self._store.add(response_id, stored)
            if not is_kept:
                logger.info("response %s is not kept: it exceeds the bounds of stored responses", response_id)

        text = request.with_earlier(earlier)
        return text, BlockForm(text, ResponsesForm(request.fields, request.forms, on_answer))

    def text_of(self, exchange: HttpExchange, request: ResponsesRequest) -> TextRequest:
        """The request for text with the conversation that it continues."""
        owner = self._owner(exchange.request.headers)
        earlier = self._earlier(request, owner)
        return request.with_items(partial(self._item, owner=owner)).with_earlier(earlier)

    def _item(self, item_id: str, owner: bytes) -> dict[str, Any]:
        found = self._store.find_item(item_id, owner)
        if found is None:
            raise ApiError(
                f"Item with id '{item_id}' not found: its response was deleted, was sent with `store: false`, or was "
                "dropped for newer ones; send the item itself in `input`",
                status=NOT_FOUND,
                param="input",
            )
        return found

    def _earlier(self, request: ResponsesRequest, owner: bytes) -> tuple[str, ...]:
        if request.previous:
            found = self._store.find(request.previous, owner)
            if found is None:
                raise ApiError(
                    f"Previous response with id '{request.previous}' not found: it was deleted, was sent with "
                    "`store: false`, or was dropped for newer ones; send the whole conversation in `input`",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            return found.messages
        return ()


def _page(items: list[dict[str, Any]], query: bytes) -> dict[str, Any]:
    """The page of *items* that the parameters `order`, `after` and `limit` select, by default the newest 20."""
    given = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
    order, after, limit = given.get("order", "desc"), given.get("after", ""), given.get("limit", "20")
    if order not in {"asc", "desc"} or not limit.isdecimal() or not 1 <= int(limit) <= _MAX_PAGE:
        raise ApiError(f"`order` must be asc or desc, and `limit` an integer from 1 to {_MAX_PAGE}", param="limit")
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after and after not in ids:
        raise ApiError(f"`after` must be the id of an item of this input, not {after!r}", param="after")
    rest = ordered[ids.index(after) + 1 if after else 0 :]
    page = rest[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(rest) > len(page)}


def _unknown(response_id: str) -> ApiError:
    return ApiError(
        f"Response with id '{response_id}' not found: it was deleted, was sent with `store: false`, or was dropped for "
        "newer ones",
        status=NOT_FOUND,
        param="response_id",
    )
