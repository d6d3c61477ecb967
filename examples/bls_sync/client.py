"""Request calls of two models from the calculator, and one call of a model that does not exist."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

LEFT = np.array([1, 2, 3], dtype=np.float32)
RIGHT = np.array([4, 5, 6], dtype=np.float32)
EXPECTED = {"add": [5.0, 7.0, 9.0], "multiply": [4.0, 10.0, 18.0]}


def calculate(client, operation):
    name = np.array([operation.encode()], dtype=object)
    inputs = [
        httpclient.InferInput("OPERATION", [1], "BYTES").set_data_from_numpy(name),
        httpclient.InferInput("LEFT", list(LEFT.shape), "FP32").set_data_from_numpy(LEFT),
        httpclient.InferInput("RIGHT", list(RIGHT.shape), "FP32").set_data_from_numpy(RIGHT),
    ]
    return client.infer("calculator", inputs).as_numpy("RESULT").tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    print("left    ", LEFT.tolist())
    print("right   ", RIGHT.tolist())
    with httpclient.InferenceServerClient(url) as client:
        for operation, expected in EXPECTED.items():
            result = calculate(client, operation)
            print(operation.ljust(8), result)
            if result != expected:
                sys.exit("a wrong answer")
        try:
            sys.exit(f"divide answered {calculate(client, 'divide')}; there is no such model")
        except InferenceServerException as error:
            print("divide   refused:", error.message().split(":")[0])


if __name__ == "__main__":
    main()
