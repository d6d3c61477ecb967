"""Send a request to a model that calls two models concurrently; each of them takes one second."""

import argparse
import sys
import time

import numpy as np
import tritonclient.grpc as grpcclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="where the server answers gRPC")
    url = parser.parse_args().url

    left = np.array([1, 2, 3], dtype=np.float32)
    right = np.array([4, 5, 6], dtype=np.float32)
    inputs = [
        grpcclient.InferInput("LEFT", list(left.shape), "FP32").set_data_from_numpy(left),
        grpcclient.InferInput("RIGHT", list(right.shape), "FP32").set_data_from_numpy(right),
    ]
    with grpcclient.InferenceServerClient(url) as client:
        started = time.monotonic()
        result = client.infer("both", inputs)
        seconds = time.monotonic() - started
    total, product = result.as_numpy("SUM"), result.as_numpy("PRODUCT")

    print("left   ", left.tolist())
    print("right  ", right.tolist())
    print("sum    ", total.tolist())
    print("product", product.tolist())
    print("sooner than one after the other:", seconds < 2)
    if not (np.array_equal(total, left + right) and np.array_equal(product, left * right) and seconds < 2):
        sys.exit(f"a wrong answer, or too late: {seconds:.2f} s")


if __name__ == "__main__":
    main()
