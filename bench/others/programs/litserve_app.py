"""LitServe: `litserve_app.py JOB PORT`; a model of rows with its batches."""

import sys

import litserve
import numpy as np
from predictors import load


class AddSub(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return np.asarray(request["a"], np.float32), np.asarray(request["b"], np.float32)

    def predict(self, pair):
        return pair[0] + pair[1], pair[0] - pair[1]

    def encode_response(self, output):
        return {"sum": output[0].tolist(), "difference": output[1].tolist()}


class Rows(litserve.LitAPI):
    def setup(self, device):
        self.model = load()

    def decode_request(self, request):
        return np.asarray(request["rows"][0], np.float32)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, rows):
        return self.model(rows)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"probabilities": [output.tolist()]}


if __name__ == "__main__":
    job, port = sys.argv[1], int(sys.argv[2])
    if job == "add_sub":
        api = AddSub(api_path="/add_sub")
    else:
        api = Rows(api_path="/rows", max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
