"""Request the longest word of a sentence."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    text = "naiads lived in fountains and in brooks"
    array = np.array([text.encode()], dtype=object)
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("longest_word", [httpclient.InferInput("TEXT", [1], "BYTES").set_data_from_numpy(array)])
    longest, length = result.as_numpy("LONGEST").item().decode(), result.as_numpy("LENGTH").item()

    print("text   ", text)
    print("longest", longest)
    print("length ", length)
    if (longest, length) != ("fountains", 9):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
