"""Ask for the sentence that is most similar to each of four texts."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient

EXPECTED = {
    "How long do I bake bread?": "Bake the bread for forty minutes in a hot oven.",
    "Will there be snow in the mountains?": "Snow will fall in the mountains during the night.",
    "interest rates of the central bank": "The central bank raised interest rates again.",
    "Who won the final?": "Our team won the final after a long penalty shootout.",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    texts = np.array([[text.encode()] for text in EXPECTED], dtype=object)
    given = httpclient.InferInput("TEXT", list(texts.shape), "BYTES").set_data_from_numpy(texts)
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("similar", [given])
    sentences = [sentence.decode() for sentence in result.as_numpy("SENTENCE")[:, 0]]

    for text, sentence, score in zip(EXPECTED, sentences, result.as_numpy("SCORE")[:, 0]):
        print(f"{score:4.0%}  {text} -> {sentence}")
    if sentences != list(EXPECTED.values()):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
