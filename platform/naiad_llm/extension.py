"""The APIs of language models as the server finds them: `naiad.server.http_api` says what each function is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.core.foreign_json import read_json
from naiad.engine.facade import EngineFacade
from naiad.frontends.extensions import Extensions
from naiad.server.http_api import ApiServices
from naiad_llm.api import OpenAiApi, OpenAiSettings
from naiad_llm.openai.responses.store import RemoteResponses, ResponseStore
from naiad_llm.openai.template import ChatTemplate


class _Extension:
    """Implements `HttpApiPackage`."""

    def make_api(
        self, engine: EngineFacade, options: ServerOptions, extensions: Extensions, services: ApiServices
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
        store = ResponseStore(options.openai.stored_responses)
        return {
            "store_response": store.add,
            "find_response": store.find,
            "find_response_item": store.find_item,
            "remove_response": store.remove,
        }

    def adapter_names(self, version: Path) -> Sequence[str]:
        """Names of a version's adapters, in the order of the file; empty for none. Reads files: call it on a thread."""
        settings, adapters = (_read_object(version / name) for name in (_SETTINGS, _ADAPTERS))
        return tuple(adapters) if str(settings.get("enable_lora")).lower() == "true" else ()

    def context_length(self, version: Path) -> int:
        """The number of tokens of prompt and output together; 0 if the files do not tell. Reads files."""
        settings = _read_object(version / _SETTINGS)
        given = settings.get(_LENGTH)
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        model = settings.get("model")
        if not isinstance(model, str) or given is not None:
            return 0
        if model.lower().endswith(_LLAMA_SUFFIX):
            return _LLAMA_LENGTH
        trained = _read_object(version / model / "config.json").get("max_position_embeddings")
        return trained if isinstance(trained, int) else 0


EXTENSION = _Extension()


# Files of Triton's vLLM backend: `multi_lora.json` beside the model's weights names the adapters, and takes effect if
# `model.json` has `"enable_lora": true` (VLLM:src/model.py).
_SETTINGS, _ADAPTERS = "model.json", "multi_lora.json"
_LENGTH = "max_model_len"
_LLAMA_SUFFIX, _LLAMA_LENGTH = ".gguf", 4096  # models of the engine xllamacpp, and their default of `max_model_len`


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or malformed, which the model reports when it loads."""
    try:
        content = read_json(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
