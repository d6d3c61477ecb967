"""vLLM's own server without its HTTP: its ASGI application, called for the paths that a model serves.

It uses the engine that is there, and listens nowhere: neither its administration nor its CORS can be reached.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any, Dict, Mapping

from vllm_like.engines.base import CANCEL_POLL_SECONDS, PathRequest, PathSink


async def make_application(engine: Any, arguments: Mapping[str, Any], chat_template: str) -> Any:
    """The application of vLLM's server for *engine*, which was started with *arguments*."""
    from vllm.entrypoints.openai import api_server
    from vllm.entrypoints.openai.cli_args import make_arg_parser

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:  # releases before 0.12
        from vllm.utils import FlexibleArgumentParser

    options = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    vars(options).update(arguments, chat_template=chat_template or None)
    name = arguments.get("served_model_name")
    options.served_model_name = [name] if isinstance(name, str) else name
    given: Dict[str, Any] = {"args": options, "engine_client": engine}
    if hasattr(engine, "get_supported_tasks"):
        given["supported_tasks"] = await engine.get_supported_tasks()
    for part in ("model_config", "vllm_config"):
        given[part] = getattr(engine, part, None)
    application = _call(api_server.build_app, given)
    await _call(api_server.init_app_state, {**given, "state": application.state})
    return application


def _call(function: Any, given: Mapping[str, Any]) -> Any:
    """Call *function* with those of the arguments that it has in the installed release."""
    return function(**{name: given[name] for name in inspect.signature(function).parameters if name in given})


async def forward(application: Any, request: PathRequest, sink: PathSink) -> None:
    """Pass a request on, and the response as it comes; a client that leaves is one that disconnects."""
    key = os.environ.get("VLLM_API_KEY", "")  # which vLLM would demand
    headers = {"host": "localhost", "content-type": request.content_type, "authorization": f"Bearer {key}"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    bodies = [request.body]
    head: Dict[str, Any] = {}
    parts = []

    async def receive() -> Dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        while not sink.is_cancelled():
            await asyncio.sleep(CANCEL_POLL_SECONDS)
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
            return
        kind = dict(head["headers"]).get(b"content-type", b"").decode("latin-1")
        body = message.get("body", b"")
        if not kind.startswith("text/event-stream"):
            parts.append(body)
            body = b"" if message.get("more_body") else b"".join(parts)
        if body:
            sink.push(head["status"], kind, body)

    await application(scope, receive, send)
