"""mosec: `mosec_app.py JOB --address HOST --port PORT`; the forest, named by FOREST, with its batches."""

import os
import sys

import joblib
import numpy as np
from mosec import Runtime, Server, Worker


class AddSub(Worker):
    def forward(self, data):
        a, b = np.asarray(data["a"], np.float32), np.asarray(data["b"], np.float32)
        return {"sum": (a + b).tolist(), "difference": (a - b).tolist()}


class Forest(Worker):
    def __init__(self):
        super().__init__()
        self.forest = joblib.load(os.environ["FOREST"])

    def forward(self, data):
        rows = np.asarray([each["rows"][0] for each in data], np.float32)
        return [{"probabilities": [each.tolist()]} for each in self.forest.predict_proba(rows)]


if __name__ == "__main__":
    job = sys.argv.pop(1)  # the rest is for mosec
    server = Server()
    batches = {"max_batch_size": 32, "max_wait_time": 1} if job == "forest" else {}
    server.register_runtime({f"/{job}": [Runtime(AddSub if job == "add_sub" else Forest, num=1, **batches)]})
    server.run()
