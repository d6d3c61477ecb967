"""BentoML: one service with both jobs; the forest, named by FOREST, with its adaptive batches."""

import os

import bentoml
import joblib
import numpy as np


@bentoml.service(workers=1)
class Jobs:
    def __init__(self) -> None:
        self.forest = joblib.load(os.environ["FOREST"])

    @bentoml.api(route="/add_sub")
    def add_sub(self, a: list[float], b: list[float]) -> dict[str, list[float]]:
        left, right = np.asarray(a, np.float32), np.asarray(b, np.float32)
        return {"sum": (left + right).tolist(), "difference": (left - right).tolist()}

    @bentoml.api(route="/forest", batchable=True, max_batch_size=32, max_latency_ms=1000)
    def classify(self, rows: list[list[float]]) -> list[list[float]]:
        return self.forest.predict_proba(np.asarray(rows, np.float32)).tolist()
