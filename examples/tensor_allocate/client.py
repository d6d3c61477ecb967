"""Request a small table and one of 24 MB."""

import argparse
import sys

import numpy as np
import tritonclient.grpc as grpcclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="where the server answers gRPC")
    url = parser.parse_args().url

    with grpcclient.InferenceServerClient(url) as client:
        for size in ((3, 4), (2000, 3000)):
            array = np.array(size, dtype=np.int32)
            result = client.infer(
                "times_table", [grpcclient.InferInput("SIZE", [2], "INT32").set_data_from_numpy(array)]
            )
            table = result.as_numpy("TABLE")
            print(f"asked for {size[0]} x {size[1]}: {table.nbytes} bytes, last row ends with {table[-1, -1]:.0f}")
            expected = np.multiply.outer(np.arange(1.0, size[0] + 1), np.arange(1.0, size[1] + 1))
            if not np.array_equal(table, expected):
                sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
