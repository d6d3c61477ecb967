"""Send three texts to the model, and print the increase of its metrics."""

import argparse
import sys
import urllib.request

import numpy as np
import tritonclient.http as httpclient

TEXTS = (("en", "naiads live in brooks"), ("en", "good morning"), ("de", "Najaden leben in Quellen und in Brunnen"))
GROWN = {
    'example_text_words_bucket{model="count_words",le="2"}': 1,
    'example_text_words_bucket{model="count_words",le="4"}': 2,
    'example_text_words_bucket{model="count_words",le="8"}': 3,
    'example_text_words_bucket{model="count_words",le="+Inf"}': 3,
    'example_text_words_count{model="count_words"}': 3,
    'example_text_words_sum{model="count_words"}': 13,
    'example_words_total{language="de"}': 7,
    'example_words_total{language="en"}': 6,
}
LONGEST = 'example_longest_text{model="count_words"}'


def read_metrics(url):
    """The model's metrics by name and labels."""
    with urllib.request.urlopen(f"http://{url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("example_"))
    }


def text_input(name, text):
    return httpclient.InferInput(name, [1], "BYTES").set_data_from_numpy(np.array([text.encode()], dtype=object))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    parser.add_argument("--metrics-url", default="localhost:8002", help="where the server shows its metrics")
    options = parser.parse_args()

    before = read_metrics(options.metrics_url)
    with httpclient.InferenceServerClient(options.url) as client:
        for language, text in TEXTS:
            result = client.infer("count_words", [text_input("TEXT", text), text_input("LANGUAGE", language)])
            print(f"{result.as_numpy('WORDS').item()} words: {text}")
    after = read_metrics(options.metrics_url)

    # Other clients may have sent requests before, so only the difference is checked.
    grown = {name: after.get(name, 0) - before.get(name, 0) for name in GROWN}
    for name, value in grown.items():
        print(f"{name} +{value:g}")
    print(f"{LONGEST} {after.get(LONGEST, 0):g}")
    if grown != GROWN or after[LONGEST] != 7:
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
