"""FastAPI under uvicorn: all jobs in the server's own process."""

import os

import numpy as np
from fastapi import FastAPI
from predictors import load
from pydantic import BaseModel

app = FastAPI()
predict = load() if os.environ["MODEL"] else None


class Pair(BaseModel):
    a: list[float]
    b: list[float]


class Rows(BaseModel):
    rows: list[list[float]]


@app.post("/add_sub")
async def add_sub(pair: Pair) -> dict[str, list[float]]:
    a, b = np.asarray(pair.a, np.float32), np.asarray(pair.b, np.float32)
    return {"sum": (a + b).tolist(), "difference": (a - b).tolist()}


# Not `async`: FastAPI runs it in a thread, as its documentation advises for work that blocks.
@app.post("/rows")
def classify(given: Rows) -> dict[str, list[list[float]]]:
    return {"probabilities": predict(given.rows).tolist()}
