"""BentoML: one service with all jobs; a model of rows with its adaptive batches."""

import os

import bentoml
import numpy as np
from predictors import load


@bentoml.service(workers=1)
class Jobs:
    def __init__(self) -> None:
        self.model = load() if os.environ["MODEL"] else None

    @bentoml.api(route="/add_sub")
    def add_sub(self, a: list[float], b: list[float]) -> dict[str, list[float]]:
        left, right = np.asarray(a, np.float32), np.asarray(b, np.float32)
        return {"sum": (left + right).tolist(), "difference": (left - right).tolist()}

    @bentoml.api(route="/rows", batchable=True, max_batch_size=32, max_latency_ms=1000)
    def classify(self, rows: list[list[float]]) -> list[list[float]]:
        return self.model(rows).tolist()
