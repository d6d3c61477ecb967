"""The engine `vllm`: vLLM's `AsyncLLM` on an event loop in a separate thread.

The keys of `model.json` are the fields of `AsyncEngineArgs` in the installed release of vLLM.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import sys
import threading
from collections import defaultdict
from functools import partial
from http import HTTPStatus
from typing import Any, Awaitable, Callable, DefaultDict, Dict, List, Mapping, Optional, Sequence, Tuple

from vllm_like import chat, keys, weights
from vllm_like.engines import vllm_leftovers, vllm_metrics, vllm_output_parsers, vllm_paths, vllm_requests
from vllm_like.engines.base import (
    CANCEL_POLL_SECONDS,
    BusyError,
    CallerError,
    Delta,
    EmbeddingRequest,
    Engine,
    EngineMetric,
    Generation,
    OutputSink,
    PathRequest,
    PathSink,
    ResultSink,
    Sink,
    check_tokens,
)
from vllm_like.settings import LORA_FILE, Settings

_HEALTH_TIMEOUT_SECONDS = 10.0
_STOP_TIMEOUT_SECONDS = 30.0
_DRAIN_POLL_SECONDS = 0.02
_BESIDE_PARAMETERS = ("priority", "data_parallel_rank")
"""Arguments of vLLM's `generate` that requests have among their parameters."""
_KIND_GPU = "GPU"
_KIND_MODEL = "MODEL"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FLAGS = ("enable_lora", "disable_log_stats", "enforce_eager", "enable_sleep_mode")
"""Boolean keys that models for Triton's vLLM backend may write as strings: vLLM would treat "false" as true."""


def start(settings: Settings, log: Callable[[str], None], on_dead: Callable[[str], None]) -> Engine:
    """Load the model with vLLM, for minutes; `ValueError` if it is not installed, or the settings are invalid."""
    keys.reject_unknown(settings.options, (), "'engine_options' in model.json")
    if not settings.arguments.get("model"):
        raise ValueError(
            f"model.json in '{settings.directory}' has no 'model'; name a GGUF file, or a folder or hub name for vLLM"
        )
    choose_devices(settings)
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
    except ImportError as error:
        raise ValueError(
            f"the engine vllm needs the package vllm in '{sys.prefix}', the model's environment: {error}; install it "
            'there, or use "engine": "xllamacpp" for a model in a GGUF file'
        ) from None
    arguments = _arguments(settings, AsyncEngineArgs, log)
    removed = vllm_leftovers.remove_abandoned()
    if removed:
        log(f"removed shared memory of an engine that was killed: {', '.join(removed)}")
    vllm_leftovers.start_watchdog()
    engine = VllmEngine(settings, AsyncEngineArgs(**arguments), on_dead)
    if os.getpgrp() == os.getpid():  # else the group has processes of others
        vllm_leftovers.record(vllm_leftovers.mapped_segments(os.getpid()))
    return engine


def choose_devices(settings: Settings) -> None:
    """Select the GPUs of an instance: its own with KIND_GPU, those of `GPU_DEVICE_IDS` with KIND_MODEL.

    Must be called before vLLM is imported, which reads the environment variable then.
    """
    kind = settings.instance.get("model_instance_kind")
    if kind == _KIND_GPU:
        if _devices_needed(settings) > 1:
            raise ValueError(
                "KIND_GPU is for models on one GPU; with tensor_parallel_size, pipeline_parallel_size or "
                "data_parallel_size above 1, use KIND_MODEL in the model's config.pbtxt"
            )
        os.environ[_VISIBLE] = _visible_name(settings.instance.get("model_instance_device_id", "0"))
    elif kind == _KIND_MODEL and settings.devices:
        os.environ[_VISIBLE] = ",".join(map(str, _device_ids(settings)))


def _visible_name(device: str) -> str:
    """The name in CUDA_VISIBLE_DEVICES of a device, which is a position among the visible ones; else the position."""
    names = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",")]
    is_listed = device.isdecimal() and int(device) < len(names) and names[int(device)]
    return names[int(device)] if is_listed else device


def _devices_needed(settings: Settings) -> int:
    one = settings.number("tensor_parallel_size", 1) * settings.number("pipeline_parallel_size", 1)
    return one * _replicas(settings)


def _replicas(settings: Settings) -> int:
    """How many replicas of the model vLLM runs on this machine; with a rank, this engine is one of them."""
    if settings.arguments.get("data_parallel_rank") is not None:
        return 1
    return settings.number("data_parallel_size_local", settings.number("data_parallel_size", 1))


def _device_ids(settings: Settings) -> List[int]:
    """The GPUs listed in `GPU_DEVICE_IDS`; a model that is distributed needs as many as it has parts."""
    text, needed = settings.devices, _devices_needed(settings)
    listed = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in listed):
        raise ValueError(f"GPU_DEVICE_IDS is '{text}'; it must list GPU numbers, such as '0,2'")
    ids = [int(part) for part in listed]
    duplicates = sorted({one for one in ids if ids.count(one) > 1})
    if duplicates:
        raise ValueError(f"GPU_DEVICE_IDS is '{text}', which lists {', '.join(map(str, duplicates))} more than once")
    if needed > 1 and len(ids) != needed:
        raise ValueError(
            f"GPU_DEVICE_IDS is '{text}', which has {len(ids)} GPUs; tensor_parallel_size times "
            f"pipeline_parallel_size{' times data_parallel_size' * (_replicas(settings) > 1)} in model.json needs "
            f"{needed}"
        )
    return ids


def _arguments(settings: Settings, arguments_class: Any, log: Callable[[str], None]) -> Dict[str, Any]:
    """The keys of `model.json` that the installed release knows."""
    known = {field.name for field in dataclasses.fields(arguments_class)}
    rest = {key: value for key, value in settings.arguments.items() if key not in known}
    keys.reject_unknown(rest, known | keys.VLLM | keys.VLLM_FORMER, f"model.json in '{settings.directory}'")
    settings.log_ignored(known, log)
    arguments = {key: value for key, value in settings.arguments.items() if key in known}
    for key in ("model", "tokenizer"):
        name = arguments.get(key)
        if isinstance(name, str):
            arguments[key] = weights.file_or_name(name, settings.directory, key)
    if "served_model_name" in known and settings.instance.get("model_name"):
        # The label `model_name` of vLLM's metrics: that of the file it loads tells nothing to clients.
        arguments.setdefault("served_model_name", settings.instance["model_name"])
    for key in _FLAGS:
        if key in arguments:
            arguments[key] = settings.flag(key)
    return arguments


class VllmEngine(Engine):
    """One `AsyncLLM`; all methods that begin with `_` and are coroutines run on its event loop."""

    def __init__(self, settings: Settings, engine_args: Any, on_dead: Callable[[str], None]) -> None:
        self._settings = settings
        self._on_dead = on_dead
        self.loras: Optional[Sequence[str]] = list(settings.loras) if settings.flag("enable_lora") else None
        if self.loras == []:
            raise ValueError(f"'enable_lora' is set, but there is no {LORA_FILE} in '{settings.directory}'")
        parser = settings.tool_call_parser
        self._tool_parser = vllm_output_parsers.tool_parser(parser) if parser else None
        reasoning = settings.reasoning_parser
        self._reasoning_parser = vllm_output_parsers.reasoning_parser(reasoning) if reasoning else None
        self._lora_numbers = {name: number for number, name in enumerate(settings.loras, 1)}
        self._running: Dict[str, Sink] = {}
        self._forwarded = 0  # requests that vLLM's own application answers
        self._is_asleep = False
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
        self._cancel_poll = asyncio.run_coroutine_threadsafe(self._poll_cancelled(), self._loop)
        if settings.paths:
            given = vars(engine_args)
            self._application = self._call(vllm_paths.make_application(self._engine, given, settings.chat_template))

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, awaitable: Awaitable[Any], timeout: Optional[float] = None) -> Any:
        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout)

    async def _poll_cancelled(self) -> None:
        """Abort cancelled requests, also those that vLLM has queued and not begun."""
        while True:
            await asyncio.sleep(CANCEL_POLL_SECONDS)
            for request_id, sink in list(self._running.items()):
                if sink.is_cancelled():
                    await self._engine.abort(request_id)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_SECONDS)

    def generate(self, generation: Generation, sink: Sink) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(self._generate(generation, sink), sink), self._loop)

    async def _finish(self, work: Awaitable[None], sink: OutputSink) -> None:
        """Await the *work* for a request, and end its output."""
        error: Optional[Exception] = None
        try:
            await work
        except Exception as raised:  # noqa: BLE001 - sent to the client
            error = raised.with_traceback(None)  # which refers to this frame, and so to the error
        sink.end(_classify(error) if error is not None else None)
        self._report_if_dead(error)

    def _check_awake(self) -> None:
        if self._is_asleep:
            raise BusyError("the model is asleep; wake it up by POST /wake_up")

    async def _generate(self, generation: Generation, sink: Sink) -> None:
        self._check_awake()
        self._running[generation.request_id] = sink
        try:
            await self._stream(generation, await self._prompt(generation), sink)
        finally:
            del self._running[generation.request_id]

    async def _stream(self, generation: Generation, prompt: Any, sink: Sink) -> None:
        tools = await self._tool_calls(generation)
        parameters = vllm_requests.sampling_parameters(generation)
        if tools is not None and not tools.skips_special_tokens:
            parameters.skip_special_tokens = False
        thoughts = await self._reasoning(generation)
        calls = None if tools is None else defaultdict(tools.new_extractor)
        extra: Dict[str, Any] = {}
        if generation.lora:
            from vllm.lora.request import LoRARequest

            number, path = self._lora_numbers[generation.lora], self._settings.loras[generation.lora]
            extra["lora_request"] = LoRARequest(generation.lora, number, path)
        extra.update({name: generation.sampling[name] for name in _BESIDE_PARAMETERS if name in generation.sampling})
        if "cache_salt" in generation.sampling:
            given = prompt if isinstance(prompt, dict) else {"prompt": prompt}
            prompt = {**given, "cache_salt": generation.sampling["cache_salt"]}
        tokenizer = await self._tokenizer() if generation.wants_prompt else None
        outputs = self._engine.generate(prompt, parameters, generation.request_id, **extra)
        async for output in outputs:
            sink.on_start(_scheduled(output))
            deltas = [_delta(one) for one in output.outputs]
            for delta, one in zip(deltas, output.outputs):
                tokens = list(one.token_ids)
                if thoughts is not None:
                    tokens = thoughts[delta.index].convert(delta, tokens, output.prompt_token_ids or ())
                if calls is not None:
                    calls[delta.index].convert(delta, tokens)
            _report_prompt(sink, output, tokenizer)
            tokenizer = None  # the text of the prompt is reported once
            transfer = getattr(output, "kv_transfer_params", None)
            if transfer:
                sink.on_transfer(transfer)
            if not sink.push(deltas, len(output.prompt_token_ids or ())):
                await self._engine.abort(generation.request_id)
                break

    async def _tool_calls(self, generation: Generation) -> Optional[vllm_output_parsers.ToolCallRequest]:
        if self._tool_parser is None or not vllm_output_parsers.expects_tool_calls(generation):
            return None
        assert generation.chat is not None
        parser, tokenizer = self._tool_parser, await self._tokenizer()
        return vllm_output_parsers.ToolCallRequest(parser, tokenizer, generation.chat, is_stream=generation.is_stream)

    async def _reasoning(
        self, generation: Generation
    ) -> Optional[DefaultDict[int, vllm_output_parsers.ReasoningExtractor]]:
        """The extractor of each choice of a chat by its number; None for a model without a parser."""
        if self._reasoning_parser is None or generation.chat is None:
            return None
        request = vllm_output_parsers.chat_request(generation.chat)
        given = (self._reasoning_parser, await self._tokenizer(), generation.chat, request)
        return defaultdict(partial(vllm_output_parsers.ReasoningExtractor, *given, is_stream=generation.is_stream))

    async def _prompt(self, generation: Generation) -> Any:
        if generation.chat is not None:
            if generation.images:
                raise CallerError("the engine vllm supports 'image' with 'text_input' only")
            tokenizer = await self._tokenizer()
            conversation, images = chat.take_images(generation.chat)
            prompt = vllm_requests.chat_prompt(tokenizer, conversation, self._settings.chat_template)
            return vllm_requests.prompt_with_images(prompt["prompt_token_ids"], images) if images else prompt
        if generation.images:
            return vllm_requests.prompt_with_images(generation.prompt, generation.images)
        if isinstance(generation.prompt, list):
            return {"prompt_token_ids": generation.prompt}
        return generation.prompt

    async def _tokenizer(self) -> Any:
        tokenizer = self._engine.get_tokenizer()
        return await tokenizer if hasattr(tokenizer, "__await__") else tokenizer  # awaitable until release 0.11

    def encode(self, text: str, *, adds_special: bool) -> Tuple[List[int], List[str]]:
        tokenizer = self._call(self._tokenizer())
        tokens = list(tokenizer.encode(text, add_special_tokens=adds_special))
        return tokens, [str(token) for token in tokenizer.convert_ids_to_tokens(tokens)]

    def decode(self, tokens: Sequence[int]) -> str:
        tokenizer = self._call(self._tokenizer())
        check_tokens(tokens, len(tokenizer), "tokens")
        return str(tokenizer.decode(list(tokens)))

    def render(self, conversation: Dict[str, Any]) -> str:
        return vllm_requests.chat_text(self._call(self._tokenizer()), conversation, self._settings.chat_template)

    def embed(self, request: EmbeddingRequest, sink: ResultSink) -> None:
        asyncio.run_coroutine_threadsafe(self._embed(request, sink), self._loop)

    async def _embed(self, request: EmbeddingRequest, sink: ResultSink) -> None:
        try:
            self._check_awake()
            each = [self._vector(request, number) for number in range(len(request.inputs))]
            found: List[Tuple[List[float], int]] = await asyncio.gather(*each)
        except Exception as error:  # noqa: BLE001 - sent to the client
            sink([], 0, _classify(error))
            self._report_if_dead(error)
            return
        sink([vector for vector, _ in found], sum(tokens for _, tokens in found), None)

    async def _vector(self, request: EmbeddingRequest, number: int) -> Tuple[List[float], int]:
        from vllm.pooling_params import PoolingParams

        given = request.inputs[number]
        prompt: Any = given if isinstance(given, str) else {"prompt_token_ids": given}
        parameters = PoolingParams(dimensions=request.dimensions, task="embed")
        last = None
        async for output in self._engine.encode(prompt, parameters, f"{request.request_id}-{number}"):
            last = output
        if last is None:
            raise RuntimeError("vLLM returned no embedding")
        return last.outputs.data.tolist(), len(last.prompt_token_ids)

    def forward(self, request: PathRequest, sink: PathSink) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(self._forward(request, sink), sink), self._loop)

    async def _forward(self, request: PathRequest, sink: PathSink) -> None:
        self._check_awake()
        self._forwarded += 1
        try:
            await vllm_paths.forward(self._application, request, sink)
        finally:
            self._forwarded -= 1

    def _report_if_dead(self, error: Optional[BaseException]) -> None:
        if error is not None and getattr(self._engine, "errored", False):
            self._on_dead(str(getattr(self._engine, "dead_error", error)))

    def kv_cache_usage(self, tokens: int) -> float:  # noqa: ARG002 - vLLM knows better
        """As `Engine.kv_cache_usage`, as vLLM reports it; 0 with `disable_log_stats`."""
        return vllm_metrics.cache_usage()

    def metrics(self) -> List[EngineMetric]:
        return vllm_metrics.read()

    def tokenizer_info(self) -> Dict[str, Any]:
        return vllm_requests.tokenizer_info(self._call(self._tokenizer()), self._settings.chat_template)

    def sleep(self, level: int, mode: str) -> None:
        if not self._settings.flag("enable_sleep_mode"):
            super().sleep(level, mode)
        self._call(self._sleep(level, mode))

    async def _sleep(self, level: int, mode: str) -> None:
        self._is_asleep = True
        try:
            if "mode" in inspect.signature(self._engine.sleep).parameters:
                await self._engine.sleep(level=level, mode=mode)
            else:  # before vLLM did that itself
                await self._end_running(mode)
                await self._engine.sleep(level)
        except BaseException:
            self._is_asleep = False
            raise

    async def _end_running(self, mode: str) -> None:
        """Wait for the running requests, which are aborted unless *mode* is `wait`."""
        if mode == "keep":
            raise CallerError("this release of vLLM cannot keep requests while it sleeps; use the mode abort or wait")
        for request_id in list(self._running) if mode == "abort" else ():
            await self._engine.abort(request_id)
        while self._running:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    def wake_up(self, tags: Optional[List[str]]) -> None:
        if not self._settings.flag("enable_sleep_mode"):
            super().wake_up(tags)
        self._call(self._wake_up(tags))

    async def _wake_up(self, tags: Optional[List[str]]) -> None:
        await self._engine.wake_up(tags)
        self._is_asleep = bool(await self._engine.is_sleeping())

    def is_sleeping(self) -> bool:
        return bool(self._call(self._engine.is_sleeping())) if self._settings.flag("enable_sleep_mode") else False

    def check_health(self) -> None:
        self._call(self._engine.check_health(), _HEALTH_TIMEOUT_SECONDS)

    def shutdown(self) -> None:
        self._call(self._drain())
        self._engine.shutdown()
        vllm_leftovers.remove_own_record()
        self._stop_loop()

    async def _drain(self) -> None:
        self._cancel_poll.cancel()
        while self._running or self._forwarded:
            await asyncio.sleep(CANCEL_POLL_SECONDS)


def _report_prompt(sink: Sink, output: Any, tokenizer: Any) -> None:
    """Report what *output* tells of its prompt; its text too, with a *tokenizer*."""
    sink.on_cached_tokens(getattr(output, "num_cached_tokens", None) or 0)
    if tokenizer is None:
        return
    tokens = list(output.prompt_token_ids or ())
    found = getattr(output, "prompt_logprobs", None)
    logprobs = None
    if found:
        logprobs = [_alternatives(token, entry) for token, entry in zip(tokens, found) if entry]
        if len(logprobs) < len(tokens):  # the first token follows nothing
            first = {"logprob": None, "rank": None, "decoded_token": tokenizer.decode(tokens[:1])}
            logprobs.insert(0, {tokens[0]: first})
    sink.on_prompt(tokenizer.decode(tokens), logprobs)


def _scheduled(output: Any) -> float:
    """When vLLM scheduled the request of *output* first (`time.monotonic`); 0 if this release does not report it."""
    return float(getattr(getattr(output, "metrics", None), "scheduled_ts", 0.0) or 0.0)


def _delta(output: Any) -> Delta:
    logprobs = [_alternatives(token, entry) for token, entry in zip(output.token_ids, output.logprobs or ())]
    sampled = sum(entry[token]["logprob"] for token, entry in zip(output.token_ids, logprobs))
    stop = getattr(output, "stop_reason", None)
    return Delta(
        output.index,
        text=output.text,
        tokens=len(output.token_ids),
        logprobs=logprobs,
        logprob=sampled,
        finish_reason=output.finish_reason,
        stop_reason=stop if isinstance(stop, str) else None,  # else the number of a token
    )


def _alternatives(sampled: int, entry: Mapping[int, Any]) -> Dict[int, Dict[str, Any]]:
    ordered = [token for token in entry if token != sampled] + [sampled]
    members = ("logprob", "rank", "decoded_token")
    return {token: {name: getattr(entry[token], name) for name in members} for token in ordered}


def _classify(error: Exception) -> Exception:
    """*error* as CallerError or BusyError if it is one.

    Earlier releases of vLLM raise ValueError for an invalid request; later ones raise VLLMClientError, not a subclass.
    """
    if isinstance(error, (CallerError, BusyError)):
        return error
    # vLLM wraps some errors in an exception without a text.
    text = str(error) or str(error.__cause__ or "") or type(error).__name__
    if isinstance(error, (ValueError, _client_error())):
        return CallerError(text)
    if getattr(error, "http_status", None) == HTTPStatus.SERVICE_UNAVAILABLE:
        return BusyError(text)
    return error if text == str(error) else RuntimeError(text)


def _client_error() -> type:
    try:
        from vllm.exceptions import VLLMClientError
    except ImportError:
        return CallerError
    return VLLMClientError
