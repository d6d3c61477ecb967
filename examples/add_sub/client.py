"""Request the sums and differences of two vectors of four numbers."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    left = np.array([1, 2, 3, 4], dtype=np.float32)
    right = np.array([10, 20, 30, 40], dtype=np.float32)
    inputs = [
        httpclient.InferInput("LEFT", list(left.shape), "FP32").set_data_from_numpy(left),
        httpclient.InferInput("RIGHT", list(right.shape), "FP32").set_data_from_numpy(right),
    ]
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("add_sub", inputs)
    total, difference = result.as_numpy("SUM"), result.as_numpy("DIFFERENCE")

    print("left      ", left.tolist())
    print("right     ", right.tolist())
    print("sum       ", total.tolist())
    print("difference", difference.tolist())
    if not (np.array_equal(total, left + right) and np.array_equal(difference, left - right)):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
