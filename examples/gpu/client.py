"""Send a matrix through the chain a few times; print where each model got its input from, and check the values."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient

ROWS, COLUMNS = 256, 1024


def expected(rows):
    rows = (rows - rows.mean(1, keepdims=True)) / rows.std(1, ddof=1, keepdims=True)
    squares = np.tanh(rows) ** 2
    return squares / (squares + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    parser.add_argument("--requests", type=int, default=3)
    arguments = parser.parse_args()

    random = np.random.default_rng(1)
    with httpclient.InferenceServerClient(arguments.url, network_timeout=300) as client:
        for number in range(1, arguments.requests + 1):
            rows = random.random((ROWS, COLUMNS), np.float32)
            given = httpclient.InferInput("IN", list(rows.shape), "FP32").set_data_from_numpy(rows)
            answer = client.infer("chain", [given])
            places = [place.decode() for place in answer.as_numpy("CAME_FROM")]
            steps = zip(("normalise", "squash", "weigh"), places)
            print(f"request {number}:", ", ".join(f"{model} from the {place}" for model, place in steps))
            if not np.allclose(answer.as_numpy("OUT"), expected(rows), atol=1e-4):
                sys.exit("a wrong answer")
    if places[1:] != ["GPU", "GPU"]:
        sys.exit("the tensors between the models went through the CPU; `naiad doctor --notes` may say why")


if __name__ == "__main__":
    main()
