"""mosec: `mosec_app.py JOB --address HOST --port PORT`; a model of rows with its batches."""

import sys

import numpy as np
from mosec import Runtime, Server, Worker
from predictors import load


class AddSub(Worker):
    def forward(self, data):
        a, b = np.asarray(data["a"], np.float32), np.asarray(data["b"], np.float32)
        return {"sum": (a + b).tolist(), "difference": (a - b).tolist()}


class Rows(Worker):
    def __init__(self):
        super().__init__()
        self.model = load()

    def forward(self, data):
        return [{"probabilities": [each.tolist()]} for each in self.model([each["rows"][0] for each in data])]


if __name__ == "__main__":
    job = sys.argv.pop(1)  # the rest is for mosec
    server = Server()
    if job == "add_sub":
        server.register_runtime({"/add_sub": [Runtime(AddSub, num=1)]})
    else:
        server.register_runtime({"/rows": [Runtime(Rows, num=1, max_batch_size=32, max_wait_time=1)]})
    server.run()
