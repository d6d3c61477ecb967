"""Request values one by one, over a gRPC stream and then as events over HTTP, and print each when it arrives."""

import argparse
import json
import queue
import sys
import urllib.request

import numpy as np
import tritonclient.grpc as grpcclient

VALUES = [4, 2, 0, 1]
PAUSE_MS = 50


def over_grpc(url):
    """The responses of a gRPC stream, up to the final one."""
    values, pause = np.array(VALUES, dtype=np.int32), np.array([PAUSE_MS], dtype=np.uint32)
    inputs = [
        grpcclient.InferInput("VALUES", list(values.shape), "INT32").set_data_from_numpy(values),
        grpcclient.InferInput("PAUSE_MS", [1], "UINT32").set_data_from_numpy(pause),
    ]
    arrived = queue.Queue()
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: arrived.put((result, error)))
        # Without the last argument the server does not send a final response that has no outputs.
        client.async_stream_infer("repeat", inputs, enable_empty_final_response=True)
        while True:
            result, error = arrived.get(timeout=10)
            if error is not None:
                sys.exit(f"an error: {error}")
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
            yield result.as_numpy("INDEX").item(), result.as_numpy("VALUE").item()
        client.stop_stream()


def over_http(url):
    """The events of `generate_stream`, until the connection is closed; needs no client library."""
    body = json.dumps({"VALUES": VALUES, "PAUSE_MS": PAUSE_MS}).encode()
    with urllib.request.urlopen(f"http://{url}/v2/models/repeat/generate_stream", body) as events:
        for line in events:
            if line.startswith(b"data:"):
                answer = json.loads(line[len(b"data:") :])
                yield answer["INDEX"], answer["VALUE"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="where the server answers gRPC")
    parser.add_argument("--http-url", default="localhost:8000", help="where the server answers HTTP")
    options = parser.parse_args()

    print("asked for", VALUES)
    for protocol, answers in (("gRPC", over_grpc(options.url)), ("HTTP", over_http(options.http_url))):
        received = []
        for index, value in answers:
            received.append(value)
            print(f"  {protocol} response {index}: {value}", flush=True)
        print(f"  {protocol} end after {len(received)} responses")
        if received != VALUES:
            sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
