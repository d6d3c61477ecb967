"""Calls the engine directly, without a server; runs in the environment's interpreter.

    python direct.py MODEL CONTEXT SLOTS

Reads one JSON object from each line, `{"streams": [[prompt, ...], ...], "tokens": n}`. Processes the streams
concurrently, one thread for each, and the prompts of a stream in order. Writes `{"seconds": ..., "cpu": ...,
"first": [...]}`. The engine's parameters are those of the backend `vllm_like`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import xllamacpp


def load(path: str, context: int, slots: int) -> Any:
    """llama.cpp's server in this process."""
    made = xllamacpp.CommonParams()
    made.model.path = path
    made.n_parallel = slots
    made.n_ctx = context * slots
    made.n_batch = made.n_ubatch = 512
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = max(1, len(os.sched_getaffinity(0)) - 1)
    made.cpuparams.poll = made.cpuparams_batch.poll = 0
    made.kv_unified = False
    made.cache_ram_mib = 0
    made.verbosity = 0
    made.ui = False
    return xllamacpp.Server(made)


def body(prompt: str, tokens: int) -> dict[str, Any]:
    """A request for greedy decoding of exactly *tokens* tokens."""
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        "ignore_eos": True,
        "stream": True,
    }


def stream(server: Any, requests: list[dict[str, Any]], firsts: list[float]) -> None:
    """Process requests one after the other; adds the seconds to the first text of each to *firsts*."""
    for request in requests:
        began = time.perf_counter()
        waits = True

        def take(chunk: Any) -> bool:
            nonlocal waits
            if waits and _has_text(chunk):
                waits = False
                firsts.append(time.perf_counter() - began)  # noqa: B023 - only called before the next iteration
            return False

        server.handle_completions(request, take)


def _has_text(chunk: Any) -> bool:
    return any(part.get("choices") for part in (chunk if isinstance(chunk, list) else [chunk]))


def answer(server: Any, streams: list[list[str]], tokens: int) -> dict[str, Any]:
    """Process all streams concurrently."""
    firsts: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    threads = [
        threading.Thread(target=stream, args=(server, [body(prompt, tokens) for prompt in prompts], firsts))
        for prompts in streams
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "first": firsts}


def main() -> None:
    """Process lines until the end of the input."""
    server = load(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(server, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
