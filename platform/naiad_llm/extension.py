"""The APIs of language models as the server finds them: `naiad.server.http_api` says what each function is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.engine.door import EngineDoor
from naiad.frontends.extensions import Extensions
from naiad.server.http_api import ApiServices
from naiad_llm.api import OpenAiApi, OpenAiSettings
from naiad_llm.openai.adapters import adapter_names, context_length
from naiad_llm.openai.responses.remote_store import RemoteResponses
from naiad_llm.openai.responses.store import ResponseStore
from naiad_llm.openai.template import ChatTemplate

__all__ = ["EXTENSION"]


class _Extension:
    """Implements `HttpApiPackage`."""

    def make_api(
        self, engine: EngineDoor, options: ServerOptions, extensions: Extensions, services: ApiServices
    ) -> OpenAiApi:
        given = options.openai
        ask = services.ask_coordinator
        settings = OpenAiSettings(
            keys=given.api_keys.variable,
            key_file=given.api_keys.file,
            default_tokens=given.default_max_tokens,
            lora_separator=given.lora_separator,
            chat_template=ChatTemplate(given.chat_template) if given.chat_template is not None else None,
            max_json=options.http.max_input_size,
            restrictions=options.http.restrictions,
            origins=given.allowed_origins,
            adapters=services.adapters,
            context=services.context,
            stored_responses=given.stored_responses,
            stored_bytes=given.stored_bytes,
            mcp=given.serves_mcp,
            mcp_models=given.mcp_models,
            store=RemoteResponses(ask) if ask is not None and given.stored_responses else None,
            metrics=services.metrics if given.serves_metrics else None,
            created=services.created,
        )
        return OpenAiApi(
            engine, extensions.tracer, settings, extensions.background, extensions.refusals, extensions.memory.budget
        )

    def coordinator_services(self, options: ServerOptions) -> Mapping[str, Callable[..., Any]]:
        store = ResponseStore(options.openai.stored_responses, options.openai.stored_bytes)
        return {
            "store_response": store.add,
            "find_response": store.find,
            "find_response_item": store.find_item,
            "remove_response": store.remove,
        }

    def adapter_names(self, version: Path) -> Sequence[str]:
        return adapter_names(version)

    def context_length(self, version: Path) -> int:
        return context_length(version)


EXTENSION = _Extension()
