"""Read the configuration that the model has completed, then request the means of two rows."""

import argparse
import sys

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    rows = np.array([[1, 2, 3], [10, 20, 60]], dtype=np.float32)
    with httpclient.InferenceServerClient(url) as client:
        config = client.get_model_config("mean")
        result = client.infer(
            "mean", [httpclient.InferInput("VALUES", list(rows.shape), "FP32").set_data_from_numpy(rows)]
        )
    mean = result.as_numpy("MEAN")

    print("max_batch_size  ", config["max_batch_size"])
    print("dynamic batching", "dynamic_batching" in config)
    for tensor in config["input"] + config["output"]:
        print(tensor["name"].ljust(16), tensor["data_type"], tensor["dims"])
    print("rows            ", rows.tolist())
    print("means           ", mean.tolist())
    if config["max_batch_size"] != 16 or mean.tolist() != [[2.0], [30.0]]:
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
