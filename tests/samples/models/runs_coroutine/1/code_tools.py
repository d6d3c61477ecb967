"""Runs the Python that a request brings along as the body of `execute`, so that a test shows what it is about."""

import asyncio  # noqa: F401 - for the code that is run
import json
import textwrap
import threading
import time  # noqa: F401 - for the code that is run

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def answer(value):
    """A response with *value* as JSON."""
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(value)], np.object_))])


def text_of(request):
    return pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()


def tensor(*values):
    return pb_utils.Tensor("IN", np.array(values, np.float32))


def code(text):
    return pb_utils.Tensor("CODE", np.array([textwrap.dedent(text)], np.object_))


def to(model, *inputs, outputs=("OUT",), **arguments):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=list(inputs), requested_output_names=list(outputs), **arguments
    )


def value_of(response):
    """What a response holds, as JSON can say it."""
    if response.has_error():
        return {"error": response.error().message(), "code": int(response.error().code())}
    values = {}
    for output in response.output_tensors():
        items = output.as_numpy().tolist()
        values[output.name()] = [item.decode() if isinstance(item, bytes) else item for item in items]
    return values


def raised(function, *arguments, **named):
    """What calling *function* raises, or the value it returns."""
    try:
        return value_of(function(*arguments, **named))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def sent(sender, *arguments, **named):
    """What sending raises, or "sent"."""
    try:
        sender.send(*arguments, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "sent"


def in_thread(function, *arguments, **named):
    """The result of *function*, called in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments, **named)))
    thread.start()
    thread.join()
    return results[0]


class TritonPythonModel:
    def initialize(self, args):
        self.in_initialize = raised(to("identity", tensor(1)).exec)

    def execute(self, requests):
        scope = dict(globals(), model=self, requests=requests, request=requests[0])
        exec("def run():\n" + textwrap.indent(text_of(requests[0]), "    "), scope)
        return scope["run"]()

    def finalize(self):
        print("in finalize:", raised(to("identity", tensor(1)).exec))
