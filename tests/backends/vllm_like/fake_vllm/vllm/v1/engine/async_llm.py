"""Tokens are words; they come one every few milliseconds.

The word CRASH in a prompt ends the engine, as a child's end does; FAIL ends the request, BUSY refuses it.
"""

import asyncio
import dataclasses
import itertools
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace
from typing import Any

import numpy as np

from vllm.exceptions import QueueOverflowError, VLLMValidationError
from vllm.v1.metrics.loggers import PrometheusStatLogger

STEP_SECONDS = 0.002
MAX_MODEL_LEN = 4096


class EngineDeadError(Exception):
    pass


class EngineGenerateError(Exception):
    """Has no words of its own."""


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: int | None
    decoded_token: str


@dataclasses.dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclasses.dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None


class TemplateError(Exception):
    """Jinja's, which is no ValueError."""


class Tokenizer:
    bos_token = eos_token = "<unk>"
    pad_token = unk_token = None
    chat_template = "the template of the tokenizer"

    def __init__(self):
        self.init_kwargs = {"vocab_file": "/a/path", "name_or_path": "/a/path", "model_max_length": 10, "odd": object()}
        self.words = ["<unk>", "</think>"]

    def __len__(self):
        return len(self.words)

    def encode(self, text, add_special_tokens=True):
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def convert_ids_to_tokens(self, ids):
        return [self.words[i] for i in ids]

    def decode(self, ids):
        return " ".join(self.convert_ids_to_tokens(ids))

    def apply_chat_template(self, messages, tools=None, tokenize=True, add_generation_prompt=False, **options):
        if messages[-1]["role"] == "assistant":
            raise TemplateError("Conversation roles must alternate")
        text = " ".join(f"<{message['role']}> {message['content']}" for message in messages)
        return text + (" <assistant>" if add_generation_prompt else "")


class AsyncLLM:
    def __init__(self, args):
        length = args.max_model_len or MAX_MODEL_LEN
        self.model_config = SimpleNamespace(max_model_len=length)
        self.args = args
        self.errored = False
        self.dead_error = EngineDeadError(
            "EngineCore encountered an issue. See stack trace (above) for the root cause."
        )
        self.tokenizer = Tokenizer()
        self.aborted = set()
        self.sleeps = 0
        self.stats = None if args.disable_log_stats else PrometheusStatLogger(args.served_model_name or args.model)
        # As the real one: the work is another process's.
        self.core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        # And it talks with it through shared memory, which Python's resource tracker removes unless it is killed, too.
        self.queue = SharedMemory(create=True, size=4096) if args.model == "some/parallel-model" else None

    @classmethod
    def from_engine_args(cls, args):
        asyncio.get_running_loop()  # the real one needs it, too
        return cls(args)

    def get_tokenizer(self):
        return self.tokenizer

    async def get_supported_tasks(self):
        return ("generate", "score")

    def check(self, words):
        if len(words) > self.model_config.max_model_len:
            raise VLLMValidationError(
                f"The decoder prompt (length {len(words)}) is longer than the maximum model length of "
                f"{self.model_config.max_model_len}. Make sure that `max_model_len` is no smaller than the number of text "
                "tokens."
            )
        if "BUSY" in words:
            raise QueueOverflowError("The engine is currently busy.")
        if "FAIL" in words:
            raise EngineGenerateError from RuntimeError("out of blocks")

    async def sleep(self, level=1):
        self.sleeps = level

    async def wake_up(self, tags=None):
        assert tags is None or set(tags) <= {"weights", "kv_cache"}
        self.sleeps = 0

    async def is_sleeping(self):
        return bool(self.sleeps)

    async def generate(self, prompt, params, request_id, lora_request=None, priority=0, data_parallel_rank=None):
        assert not self.sleeps, "no requests while it sleeps"
        text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
        ids = prompt["prompt_token_ids"] if text is None else self.tokenizer.encode(text)
        words = [self.tokenizer.words[i] for i in ids]
        self.check(words)
        if lora_request is not None:
            words = [lora_request.lora_name, lora_request.lora_path]
        if params.structured_outputs is not None:
            words = [str(params.structured_outputs)]
        words = ["</think>" if word == "ENOUGH" else word for word in words]
        if words[:1] == ["PASSED"]:  # says what it was given beside the prompt
            salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
            words = [f"priority={priority}", f"salt={salt}", f"extra={params.extra_args}", f"rank={data_parallel_rank}"]
        stops = [params.stop] if isinstance(params.stop, str) else params.stop or []
        for count, word in enumerate(itertools.cycle(words), 1):
            await asyncio.sleep(STEP_SECONDS)
            if "CRASH" in words:
                self.errored = True
                raise self.dead_error
            reason = "abort" if request_id in self.aborted else "length" if count >= params.max_tokens else None
            text = f" {word}"
            if word in stops:
                reason, text = "stop", ""
            if self.stats is not None:
                self.stats.record(ids if count == 1 else (), params.n, reason)
            for index in range(params.n):
                yield self.output(request_id, ids, index, text, word, params, reason)
            if reason:
                return

    def output(self, request_id: str, ids: list[int], index: int, text: str, word: str, params: Any, reason: Any):
        token = self.tokenizer.encode(word)[0]
        logprobs = None
        if params.logprobs is not None:
            logprobs = [{token: Logprob(-0.5, 1, text)}]
            for other in range(params.logprobs - 1):
                logprobs[0][100000 + other] = Logprob(-2.0 - other, 2 + other, "x")
        stop = word if reason == "stop" else None
        one = CompletionOutput(index, text, [token], -0.5, logprobs, reason, stop)
        known = None
        if params.prompt_logprobs is not None:
            entries = [{i: Logprob(-0.25 * n, 1, self.tokenizer.words[i] + " ")} for n, i in enumerate(ids)]
            known = [None, *entries[1:]]
        wanted = (params.extra_args or {}).get("kv_transfer_params")
        transfer = {"remote_engine_id": "e1", "asked": wanted} if wanted and reason is not None else None
        return RequestOutput(request_id, ids, [one], reason is not None, known, len(ids) // 2, transfer)

    async def encode(self, prompt, params, request_id):
        ids = prompt["prompt_token_ids"] if isinstance(prompt, dict) else self.tokenizer.encode(prompt)
        data = np.arange(params.dimensions or 8, dtype=np.float32) + len(ids)
        yield SimpleNamespace(prompt_token_ids=ids, outputs=SimpleNamespace(data=data))

    async def abort(self, request_id):
        self.aborted.add(request_id)

    async def check_health(self):
        if self.errored or self.core.poll() is not None:
            raise self.dead_error

    def shutdown(self):
        self.core.kill()
        self.core.wait()
        if self.queue is not None:
            self.queue.close()
            self.queue.unlink()
