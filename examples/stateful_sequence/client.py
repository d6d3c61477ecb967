"""Send two sequences with alternating requests, then one request to a sequence that has ended."""

import argparse
import itertools
import sys

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

SEQUENCES = {7: [1, 2, 3], 8: [10, 20, 30]}


def send(client, sequence, amount, *, start=False, end=False):
    array = np.array([[amount]], dtype=np.int32)
    result = client.infer(
        "running_total",
        [httpclient.InferInput("AMOUNT", list(array.shape), "INT32").set_data_from_numpy(array)],
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
    )
    return result.as_numpy("TOTAL").item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    with httpclient.InferenceServerClient(url) as client:
        for index in range(3):
            for sequence, amounts in SEQUENCES.items():
                total = send(client, sequence, amounts[index], start=index == 0, end=index == 2)
                print(f"sequence {sequence}: {amounts[index]:2} makes {total}")
                if total != list(itertools.accumulate(amounts))[index]:
                    sys.exit("a wrong answer")
        try:
            sys.exit(f"sequence 7 has ended, and yet it answered {send(client, 7, 4)}")
        except InferenceServerException as error:
            print("sequence 7 after its end:", error.message())


if __name__ == "__main__":
    main()
