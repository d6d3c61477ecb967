"""Ask both chains the same question and print the parts of their answers as they arrive."""

from __future__ import annotations

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc as grpcclient

QUESTION = "  What is the   capital of France?  "


def main() -> int:
    """Returns 0 if both chains streamed and gave the same answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--max-tokens", type=int, default=40)
    options = parser.parse_args()
    answers = {}
    with grpcclient.InferenceServerClient(options.url) as client:
        for model in ("as_ensemble", "as_calls"):
            print(f"{model}: ", end="")
            parts, is_last = ask(client, model, options.max_tokens)
            print(f"\n  in {len(parts)} parts, the last one marked as such: {'yes' if is_last else 'no'}")
            answers[model] = "".join(parts) if len(parts) > 1 and is_last else None
    return 0 if answers["as_ensemble"] and answers["as_ensemble"] == answers["as_calls"] else 1


def ask(client: grpcclient.InferenceServerClient, model: str, tokens: int) -> tuple[list[str], bool]:
    """The parts of one answer, and whether the last one has the final flag."""
    arrived: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: arrived.put((result, error)), stream_timeout=100)
    client.async_stream_infer(model, inputs(tokens), enable_empty_final_response=True)
    parts, is_last = [], False
    while True:
        result, error = arrived.get(timeout=100)
        if error is not None:
            raise error
        answer = result.as_numpy("ANSWER")
        if answer is not None:
            parts.append(answer[0].decode("utf-8", "replace"))
            print(parts[-1], end="", flush=True)
            is_last = bool(result.as_numpy("IS_LAST")[0])
        if result.get_response().parameters["triton_final_response"].bool_param:
            client.stop_stream()
            return parts, is_last


def inputs(tokens: int) -> list[grpcclient.InferInput]:
    """Ask the question; returns the exit code."""
    question = grpcclient.InferInput("QUESTION", [1], "BYTES")
    question.set_data_from_numpy(np.array([QUESTION.encode()], dtype=object))
    most = grpcclient.InferInput("MAX_TOKENS", [1], "INT32")
    most.set_data_from_numpy(np.array([tokens], dtype=np.int32))
    return [question, most]


if __name__ == "__main__":
    sys.exit(main())
