"""Ask for values one by one over a gRPC stream, and print each as it arrives."""

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc as grpcclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="where the server answers gRPC")
    url = parser.parse_args().url

    values = np.array([4, 2, 0, 1], dtype=np.int32)
    pause = np.array([50], dtype=np.uint32)
    inputs = [
        grpcclient.InferInput("VALUES", list(values.shape), "INT32").set_data_from_numpy(values),
        grpcclient.InferInput("PAUSE_MS", [1], "UINT32").set_data_from_numpy(pause),
    ]
    print("asked for", values.tolist())
    arrived = queue.Queue()
    received = []
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: arrived.put((result, error)))
        # Without the last argument an end that comes without outputs is not sent to the client.
        client.async_stream_infer("repeat", inputs, enable_empty_final_response=True)
        while True:
            result, error = arrived.get(timeout=10)
            if error is not None:
                sys.exit(f"an error: {error}")
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
            received.append(result.as_numpy("VALUE").item())
            print(f"  response {result.as_numpy('INDEX').item()}: {received[-1]}")
        client.stop_stream()
    print("end after", len(received), "responses")
    if received != values.tolist():
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
