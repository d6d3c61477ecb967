"""vLLM itself, its `AsyncLLM`, on an event loop of its own thread.

What `model.json` names is what vLLM's `AsyncEngineArgs` take, of whichever release is installed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading
from typing import Any, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from vllm_like import keys, weights
from vllm_like.engines import vllm_errors, vllm_requests, watchdog
from vllm_like.engines.base import CallerError, Delta, EmbeddingRequest, EmbeddingSink, Engine, Generation, Sink
from vllm_like.settings import LORA_FILE, Settings

_CANCEL_SECONDS = 0.05
_HEALTH_SECONDS = 10.0
_END_SECONDS = 30.0
_KIND_GPU = "GPU"
_KIND_MODEL = "MODEL"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FLAGS = ("enable_lora", "disable_log_stats", "enforce_eager")
"""Those that models for Triton's vLLM backend write as text: vLLM would take "false" for true."""


def start(settings: Settings, log: Callable[[str], None], died: Callable[[str], None]) -> Engine:
    """Start vLLM; takes as long as that takes.

    Raises:
        ValueError: If it is not there, or the settings are wrong.
    """
    keys.refuse_unknown(settings.options, (), "'engine_options' in model.json")
    choose_devices(settings)
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
    except ImportError as error:
        raise ValueError(
            f"the engine vllm needs a package of that name in '{sys.prefix}', the model's environment: {error}. "
            'Models in GGUF files run without it, see "engine": "xllamacpp"'
        ) from None
    arguments = _arguments(settings, AsyncEngineArgs, log)
    watchdog.start()
    return VllmEngine(settings, AsyncEngineArgs(**arguments), died)


def choose_devices(settings: Settings) -> None:
    """Give an instance its devices: one of KIND_GPU its own, one of KIND_MODEL those of `GPU_DEVICE_IDS`.

    Has to be done before vLLM is imported.

    Raises:
        ValueError: If there cannot be such devices, or they are not as many as the model needs.
    """
    kind = settings.instance.get("model_instance_kind")
    if kind == _KIND_GPU:
        if _devices_needed(settings) > 1:
            raise ValueError(
                "KIND_GPU is for models on one GPU; with tensor_parallel_size or pipeline_parallel_size above 1, use "
                "KIND_MODEL in the model's config.pbtxt"
            )
        os.environ[_VISIBLE] = settings.instance.get("model_instance_device_id", "0")
    elif kind == _KIND_MODEL and settings.devices:
        os.environ[_VISIBLE] = ",".join(map(str, _device_ids(settings.devices, _devices_needed(settings))))


def _devices_needed(settings: Settings) -> int:
    return settings.number("tensor_parallel_size", 1) * settings.number("pipeline_parallel_size", 1)


def _device_ids(text: str, needed: int) -> List[int]:
    """The GPUs that `GPU_DEVICE_IDS` lists; a model that is divided among several has to be given all it needs."""
    listed = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in listed):
        raise ValueError(f"GPU_DEVICE_IDS is '{text}'; it has to list numbers of GPUs of 0 or more, such as '0,2'")
    ids = [int(part) for part in listed]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise ValueError(f"GPU_DEVICE_IDS is '{text}', which lists {', '.join(map(str, twice))} more than once")
    if needed > 1 and len(ids) != needed:
        raise ValueError(
            f"GPU_DEVICE_IDS is '{text}', which are {len(ids)}; tensor_parallel_size times pipeline_parallel_size "
            f"in model.json asks for {needed}"
        )
    return ids


def _arguments(settings: Settings, arguments_class: Any, log: Callable[[str], None]) -> Dict[str, Any]:
    """What the installed release takes of `model.json`."""
    known = {field.name for field in dataclasses.fields(arguments_class)}
    rest = {key: value for key, value in settings.arguments.items() if key not in known}
    keys.refuse_unknown(rest, known | keys.VLLM | keys.VLLM_FORMER, f"model.json in '{settings.directory}'")
    settings.tell_ignored(known, log)
    arguments = {key: value for key, value in settings.arguments.items() if key in known}
    for key in ("model", "tokenizer"):
        name = arguments.get(key)
        if isinstance(name, str):
            arguments[key] = weights.file_or_name(name, settings.directory, key)
    for key in _FLAGS:
        if key in arguments:
            arguments[key] = settings.flag(key)
    return arguments


class VllmEngine(Engine):
    """One `AsyncLLM`."""

    def __init__(self, settings: Settings, engine_args: Any, died: Callable[[str], None]) -> None:
        self._settings = settings
        self._died = died
        self.loras: Optional[Sequence[str]] = list(settings.loras) if settings.flag("enable_lora") else None
        if self.loras == []:
            raise ValueError(f"'enable_lora' is set, but there is no {LORA_FILE} in '{settings.directory}'")
        self._lora_numbers = {name: number for number, name in enumerate(settings.loras, 1)}
        self._running: Dict[str, Sink] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._engine = self._call(vllm_requests.make_engine(engine_args))
        except BaseException:
            self._stop_loop()
            raise
        config = getattr(self._engine, "model_config", None)
        self.max_model_len = getattr(config, "max_model_len", 0)
        self._call(self._begin_watching())

    # -- its thread ----------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, awaitable: Awaitable[Any], timeout: Optional[float] = None) -> Any:
        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout)

    async def _begin_watching(self) -> None:
        self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        """Abort what nobody waits for, also while it waits for its turn."""
        while True:
            await asyncio.sleep(_CANCEL_SECONDS)
            for request_id, sink in list(self._running.items()):
                if sink.is_cancelled():
                    await self._engine.abort(request_id)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_SECONDS)

    # -- requests ------------------------------------------------------------------------------------------------

    def generate(self, generation: Generation, sink: Sink) -> None:
        """Answer a request for text."""
        asyncio.run_coroutine_threadsafe(self._generate(generation, sink), self._loop)

    async def _generate(self, generation: Generation, sink: Sink) -> None:
        self._running[generation.request_id] = sink
        error: Optional[Exception] = None
        try:
            prompt = await self._prompt(generation)
            await self._follow(generation, prompt, sink)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the client is to be told
            error = raised
        finally:
            del self._running[generation.request_id]
        sink.end(vllm_errors.told(error) if error is not None else None)
        self._look_for_death(error)

    async def _follow(self, generation: Generation, prompt: Any, sink: Sink) -> None:
        parameters = vllm_requests.sampling_parameters(generation)
        extra: Dict[str, Any] = {}
        if generation.lora:
            path = self._settings.loras[generation.lora]
            extra["lora_request"] = vllm_requests.lora(generation.lora, self._lora_numbers[generation.lora], path)
        outputs = self._engine.generate(prompt, parameters, generation.request_id, **extra)
        async for output in outputs:
            deltas = [_delta(one) for one in output.outputs]
            if not sink.push(deltas, len(output.prompt_token_ids or ())):
                await self._engine.abort(generation.request_id)
                break

    async def _prompt(self, generation: Generation) -> Any:
        if generation.chat is not None:
            if generation.images:
                raise CallerError("the engine vllm takes 'image' with 'text_input' alone")
            tokenizer = self._engine.get_tokenizer()
            if hasattr(tokenizer, "__await__"):  # until release 0.11
                tokenizer = await tokenizer
            return vllm_requests.chat_prompt(tokenizer, generation.chat, self._settings.chat_template)
        if generation.images:
            return vllm_requests.prompt_with_images(generation.prompt, generation.images)
        return generation.prompt

    def embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        """Answer a request for vectors."""
        asyncio.run_coroutine_threadsafe(self._embed(request, sink), self._loop)

    async def _embed(self, request: EmbeddingRequest, sink: EmbeddingSink) -> None:
        try:
            each = [self._vector(request, number) for number in range(len(request.inputs))]
            found: List[Tuple[List[float], int]] = await asyncio.gather(*each)
        except Exception as error:  # noqa: BLE001 - likewise
            sink([], 0, vllm_errors.told(error))
            self._look_for_death(error)
            return
        sink([vector for vector, _ in found], sum(tokens for _, tokens in found), None)

    async def _vector(self, request: EmbeddingRequest, number: int) -> Tuple[List[float], int]:
        given = request.inputs[number]
        prompt: Any = given if isinstance(given, str) else {"prompt_token_ids": given}
        parameters = vllm_requests.pooling_parameters(request.dimensions)
        last = None
        async for output in self._engine.encode(prompt, parameters, f"{request.request_id}-{number}"):
            last = output
        if last is None:
            raise RuntimeError("vLLM gave no embedding")
        return last.outputs.data.tolist(), len(last.prompt_token_ids)

    # -- its health ----------------------------------------------------------------------------------------------

    def _look_for_death(self, error: Optional[BaseException]) -> None:
        if error is not None and getattr(self._engine, "errored", False):
            self._died(str(getattr(self._engine, "dead_error", error)))

    def check_health(self) -> None:
        """Raise if vLLM says that it does not work."""
        self._call(self._engine.check_health(), _HEALTH_SECONDS)

    def shutdown(self) -> None:
        """Wait for requests under way, then stop vLLM and its processes."""
        self._call(self._drain())
        self._engine.shutdown()
        self._stop_loop()

    async def _drain(self) -> None:
        self._watching.cancel()
        while self._running:
            await asyncio.sleep(_CANCEL_SECONDS)


def _delta(output: Any) -> Delta:
    """One choice's part of an output of kind DELTA."""
    logprobs = [_alternatives(token, entry) for token, entry in zip(output.token_ids, output.logprobs or ())]
    taken = sum(entry[token]["logprob"] for token, entry in zip(output.token_ids, logprobs))
    return Delta(
        output.index,
        text=output.text,
        tokens=len(output.token_ids),
        logprobs=logprobs,
        logprob=taken,
        finish_reason=output.finish_reason,
    )


def _alternatives(taken: int, entry: Mapping[int, Any]) -> Dict[int, Dict[str, Any]]:
    ordered = [token for token in entry if token != taken] + [taken]
    return {
        token: {
            "logprob": entry[token].logprob,
            "rank": entry[token].rank,
            "decoded_token": entry[token].decoded_token,
        }
        for token in ordered
    }
