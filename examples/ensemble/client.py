"""Classify three flowers with the ensemble, and print how often each of its models ran."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient

FLOWERS = {
    "setosa": [5.1, 3.5, 1.4, 0.2],
    "versicolor": [5.9, 2.8, 4.3, 1.3],
    "virginica": [6.7, 3.1, 5.6, 2.4],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    measured = np.array(list(FLOWERS.values()), dtype=np.float32)
    tensor = httpclient.InferInput("CENTIMETRES", list(measured.shape), "FP32").set_data_from_numpy(measured)
    with httpclient.InferenceServerClient(url) as client:
        result = client.infer("flowers", [tensor])
        counts = {
            name: client.get_inference_statistics(name)["model_stats"][0]["inference_count"]
            for name in ("flowers", "prepare", "scores", "tell")
        }
    kinds = [kind.decode() for kind in result.as_numpy("KIND")[:, 0]]

    for kind, confidence, row in zip(kinds, result.as_numpy("CONFIDENCE")[:, 0], measured.tolist()):
        print(f"{kind:10} {confidence:4.0%}  {[round(value, 1) for value in row]}")
    print("flowers seen by", ", ".join(f"{name}: {count}" for name, count in counts.items()))
    if kinds != list(FLOWERS):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
