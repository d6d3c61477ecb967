"""The model of a job, which each program loads in its own process: rows of numbers to rows of probabilities."""

import os
from pathlib import Path

import numpy as np


def load(path=None):
    """A function of an array, from the file that MODEL names: a classifier of scikit-learn, or an ONNX file."""
    path = Path(path or os.environ["MODEL"])
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda rows: session.run(["probabilities"], {"X": np.asarray(rows, np.float32)})[0]
    import joblib

    forest = joblib.load(path)
    return lambda rows: forest.predict_proba(np.asarray(rows, np.float32))
