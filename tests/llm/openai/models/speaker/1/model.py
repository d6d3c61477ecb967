"""Stands in for a language model: it says the words of its prompt, one token each, to `max_tokens` of them.

A prompt of "wait" goes on until it is cancelled, and counts that in `/tmp`-free fashion: the next prompt "cancelled"
answers how many were. "fail" fails at once, "fail later" after its first token. A chat says its last message; with
tools it calls the first of them with `{"said": <last message>}`.
"""

import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = 0

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()

    def answer(self, request, sender):
        given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        try:
            self.speak(given, sender)
        except Exception as error:
            code = pb_utils.TritonError.INVALID_ARG
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code)), flags=FINAL)

    def speak(self, given, sender):
        if "embedding_request" in given:
            sender.send(self.embedding(json.loads(given["embedding_request"])), flags=FINAL)
            return
        sampling = json.loads(given.get("sampling_parameters", b"{}"))
        conversation = json.loads(given["messages"]) if "messages" in given else None
        prompt = conversation["messages"][-1]["content"] if conversation else given["text_input"].decode()
        if prompt == "fail":
            raise ValueError("this model fails when it is told to")
        if prompt == "wait":
            self.wait(sender)
            return
        words = [str(self.cancelled)] if prompt == "cancelled" else self.words(prompt, sampling)
        if prompt == "sampling":
            words = [json.dumps(sampling, sort_keys=True)]
        if prompt == "conversation":
            words = [json.dumps(conversation, sort_keys=True)]
        call = (conversation or {}).get("tools")
        reason = "length" if len(words) > sampling["max_tokens"] else "stop"
        words = words[: sampling["max_tokens"]]
        if call:
            words, reason = [json.dumps({"said": prompt})], "tool_calls"
        steps = range(len(words)) if given.get("stream") else [slice(None)]
        for step in steps:
            new = words[step] if isinstance(step, slice) else [words[step]]
            is_last = isinstance(step, slice) or step == len(words) - 1
            sender.send(self.response(given, sampling, new, reason if is_last else "None", call), FINAL * is_last)
            if prompt == "fail later":
                raise ValueError("this model fails when it is told to")

    def words(self, prompt, sampling):
        words = [word + " " for word in prompt.split()]
        stops = sampling.get("stop", [])
        for stop in [stops] if isinstance(stops, str) else stops:
            words = words[: words.index(stop + " ")] if stop + " " in words else words
        return words or [""]

    def response(self, given, sampling, new, reason, call):
        count = sampling.get("n", 1)
        text = "".join(new)
        message = {"content": text}
        if call:
            function = {"name": call[0]["function"]["name"], "arguments": text}
            message = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
            text = ""
        if not given.get("stream"):
            message = {"role": "assistant", "content": None, **message}
        outputs = {"text_output": [text] * count, "finish_reason": [reason] * count}
        outputs["message"] = [json.dumps(message)] * count
        if given.get("return_logprobs"):
            likely = [
                {
                    "7": {"logprob": -2.5, "rank": 2, "decoded_token": "other"},
                    str(number): {"logprob": -0.5, "rank": 1, "decoded_token": word},
                }
                for number, word in enumerate(new)
            ]
            outputs["logprobs"] = [json.dumps(likely)] * count
        tensors = [pb_utils.Tensor(name, np.array(values, object)) for name, values in outputs.items()]
        tensors.append(pb_utils.Tensor("num_input_tokens", np.array([3], np.uint32)))
        tensors.append(pb_utils.Tensor("num_output_tokens", np.array([len(new)] * count, np.uint32)))
        return pb_utils.InferenceResponse(tensors)

    def embedding(self, wanted):
        items = wanted["input"] if isinstance(wanted["input"], list) else [wanted["input"]]
        size = wanted.get("pooling_params", {}).get("dimensions", 4)
        vectors = [json.dumps([float(len(str(item)))] + [0.5] * (size - 1)) for item in items]
        tensors = [pb_utils.Tensor("text_output", np.array(vectors, object))]
        tensors.append(pb_utils.Tensor("num_input_tokens", np.array([len(items)], np.uint32)))
        return pb_utils.InferenceResponse(tensors)

    def wait(self, sender):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array(["waiting "], object))]))
        pause = threading.Event()
        for _ in range(6000):
            if sender.is_cancelled():
                break
            pause.wait(0.01)
        self.cancelled += 1
        error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
