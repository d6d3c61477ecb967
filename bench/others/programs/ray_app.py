"""Ray Serve: `ray_app.py JOB PORT`; a model of rows with its batches."""

import os
import sys
import time
from pathlib import Path

import numpy as np
from ray import serve


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
class AddSub:
    async def __call__(self, request):
        given = await request.json()
        a, b = np.asarray(given["a"], np.float32), np.asarray(given["b"], np.float32)
        return {"sum": (a + b).tolist(), "difference": (a - b).tolist()}


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
class Rows:
    def __init__(self, folder, path):
        sys.path.append(folder)  # the replica runs in a process of Ray's
        from predictors import load

        self.model = load(path)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def classify(self, rows):
        return list(self.model(rows))

    async def __call__(self, request):
        given = await request.json()
        return {"probabilities": [(await self.classify(given["rows"][0])).tolist()]}


if __name__ == "__main__":
    job, port = sys.argv[1], int(sys.argv[2])
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    if job == "add_sub":
        serve.run(AddSub.bind(), route_prefix="/add_sub")
    else:
        serve.run(Rows.bind(str(Path(__file__).resolve().parent), os.environ["MODEL"]), route_prefix="/rows")
    while True:
        time.sleep(3600)
