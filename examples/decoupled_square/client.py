"""Send three concurrent requests on one gRPC stream, then one to a model that sums up the responses."""

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc as grpcclient

COUNTS = (5, 3, 0)


def count_input(count):
    return grpcclient.InferInput("COUNT", [1], "INT32").set_data_from_numpy(np.array([count], dtype=np.int32))


def ask_all(client):
    """The squares of each request; responses of different requests may arrive interleaved."""
    arrived = queue.Queue()
    squares = {str(count): [] for count in COUNTS}
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    for request_id in squares:
        client.async_stream_infer(
            "squares", [count_input(int(request_id))], request_id=request_id, enable_empty_final_response=True
        )
    open_requests = set(squares)
    while open_requests:
        result, error = arrived.get(timeout=10)
        if error is not None:
            sys.exit(f"an error: {error}")
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            open_requests.remove(response.id)
        else:
            squares[response.id].append(result.as_numpy("SQUARE").item())
    client.stop_stream()
    return squares


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="where the server answers gRPC")
    url = parser.parse_args().url

    with grpcclient.InferenceServerClient(url) as client:
        squares = ask_all(client)
        total = client.infer("sum_of_squares", [count_input(10)]).as_numpy("SUM").item()

    for count, numbers in squares.items():
        print(f"squares of 1 to {count}:", numbers)
        if numbers != [number**2 for number in range(1, int(count) + 1)]:
            sys.exit("a wrong answer")
    print("sum of the squares of 1 to 10:", total)
    if total != 385:
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
