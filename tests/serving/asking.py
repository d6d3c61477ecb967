"""Requests of sequences, under way on threads of their own."""

from __future__ import annotations

import json

from support.threads import in_thread


class Ask:
    """A request under way on a thread of its own."""

    def __init__(self, server, model, sequence=None, flags="", *, rows=1, text=None, value=1.5, **parameters):
        if sequence is not None:
            parameters["sequence_id"] = sequence
        parameters |= {f"sequence_{flag}": True for flag in flags.split()}
        inputs = [{"name": "IN", "datatype": "FP32", "shape": [rows, 1], "data": [value] * rows}]
        if text is not None:
            inputs.append({"name": "TEXT", "datatype": "BYTES", "shape": [rows, 1], "data": [text] * rows})
        self._asked = in_thread(server.post, f"/v2/models/{model}/infer", {"inputs": inputs, "parameters": parameters})

    @property
    def reply(self):
        return self._asked.result(60)

    def finish(self):
        assert self.reply.status == 200, self.reply.body

    @property
    def text(self):
        assert self.reply.status == 200, self.reply.body
        return self.reply.json()["outputs"][0]["data"][0]

    @property
    def seen(self):
        return json.loads(self.text)

    @property
    def refusal(self):
        return self.reply.status, self.reply.error
