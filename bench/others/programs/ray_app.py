"""Ray Serve: `ray_app.py JOB PORT`; the forest, named by FOREST, with its batches."""

import os
import sys
import time

import joblib
import numpy as np
from ray import serve


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
class AddSub:
    async def __call__(self, request):
        given = await request.json()
        a, b = np.asarray(given["a"], np.float32), np.asarray(given["b"], np.float32)
        return {"sum": (a + b).tolist(), "difference": (a - b).tolist()}


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
class Forest:
    def __init__(self, path):
        self.forest = joblib.load(path)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def classify(self, rows):
        return list(self.forest.predict_proba(np.asarray(rows, np.float32)))

    async def __call__(self, request):
        given = await request.json()
        return {"probabilities": [(await self.classify(given["rows"][0])).tolist()]}


if __name__ == "__main__":
    job, port = sys.argv[1], int(sys.argv[2])
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(AddSub.bind() if job == "add_sub" else Forest.bind(os.environ["FOREST"]), route_prefix=f"/{job}")
    while True:
        time.sleep(3600)
