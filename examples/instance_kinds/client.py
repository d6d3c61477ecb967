"""Keep all three instances of a model busy at the same time, and print their names and kinds."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    pause = np.array([1000], dtype=np.uint32)
    inputs = [httpclient.InferInput("PAUSE_MS", [1], "UINT32").set_data_from_numpy(pause)]
    with httpclient.InferenceServerClient(url, concurrency=3) as client:
        results = [sent.get_result() for sent in [client.async_infer("where", inputs) for _ in range(3)]]

    answers = sorted(
        tuple(result.as_numpy(name).item().decode() for name in ("INSTANCE", "KIND", "DEVICE")) for result in results
    )
    processes = {result.as_numpy("PROCESS").item() for result in results}
    for instance, kind, device in answers:
        print(f"{instance}: kind {kind}, device {device}")
    print(len(processes), "processes")
    if [kind for _, kind, _ in answers] != ["CPU", "CPU", "MODEL"] or len(processes) != 3:
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
