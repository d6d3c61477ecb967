"""Label four sentences with the pipeline, and print the output of its first step for one of them."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient

EXPECTED = {
    "The goalkeeper saved the match in the last minute.": "sport",
    "Add salt, garlic and lemon to the hot soup.": "cooking",
    "Shares of the bank fell after it cut the dividend.": "finance",
    "Strong wind and showers are expected on the coast.": "weather",
}


def text_input(array):
    return httpclient.InferInput("TEXT", list(array.shape), "BYTES").set_data_from_numpy(array)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    texts = np.array([[text.encode()] for text in EXPECTED], dtype=object)
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("text_pipeline", [text_input(texts)])
        tokens = client.infer("tokenizer", [text_input(texts[:1])]).as_numpy("TOKENS")
    labels = [label.decode() for label in result.as_numpy("LABEL")[:, 0]]

    for text, label, score in zip(EXPECTED, labels, result.as_numpy("SCORE")[:, 0]):
        print(f"{label:8} {score:4.0%}  {text}")
    print("tokens of the first:", tokens[0].tolist())
    if labels != list(EXPECTED.values()):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
