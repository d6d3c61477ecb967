"""Calls a model for some seconds: `call.py FILE SHAPE THREADS SECONDS`; prints calls, seconds and the p50."""

import json
import sys
import time

import numpy as np
import onnxruntime

path, shape, threads, seconds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
given = {"X": np.zeros(shape, "f")}
for _ in range(20):
    session.run(["Y"], given)
times = []
began = time.perf_counter()
while time.perf_counter() - began < seconds:
    before = time.perf_counter()
    session.run(["Y"], given)
    times.append(time.perf_counter() - before)
print(len(times), time.perf_counter() - began, sorted(times)[len(times) // 2])
