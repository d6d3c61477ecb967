"""FastAPI under uvicorn: both jobs in the server's own process. Joblib's file is named by FOREST."""

import os

import joblib
import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
forest = joblib.load(os.environ["FOREST"])


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
@app.post("/forest")
def classify(given: Rows) -> dict[str, list[list[float]]]:
    return {"probabilities": forest.predict_proba(np.asarray(given.rows, np.float32)).tolist()}
