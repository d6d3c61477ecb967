"""Send a picture twice in one batch, compare the pixels with the expected ones, then send an invalid file."""

import argparse
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient
from make_image import landscape
from tritonclient.utils import InferenceServerException

MEAN = np.array([0.485, 0.456, 0.406])
DEVIATION = np.array([0.229, 0.224, 0.225])


def preprocess(client, files):
    array = np.array([[file] for file in files], dtype=object)
    inputs = [httpclient.InferInput("PNG", list(array.shape), "BYTES").set_data_from_numpy(array)]
    # Writing pixels as JSON numbers takes longer than computing them; outputs are binary by default.
    return client.infer("preprocess", inputs).as_numpy("PIXELS")


def expected_pixels():
    """The middle 96 x 96 pixels of the drawing, averaged over squares of 2 x 2."""
    middle = landscape()[:, 16:112] / 255
    averaged = middle.reshape(48, 2, 48, 2, 3).mean(axis=(1, 3))
    return ((averaged - MEAN) / DEVIATION).transpose(2, 0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server answers HTTP")
    url = parser.parse_args().url

    file = Path(__file__).with_name("landscape.png").read_bytes()
    with httpclient.InferenceServerClient(url) as client:
        pixels = preprocess(client, [file, file])
        try:
            preprocess(client, [b"GIF89a"])
            sys.exit("what is no PNG file was answered")
        except InferenceServerException as error:
            refusal = error.message()

    print("sent a picture twice:", len(file), "bytes each")
    print("came back: shape", list(pixels.shape), pixels.dtype)
    for name, image in (("top row", pixels[0][:, 0]), ("bottom row", pixels[0][:, -1])):
        colour = (image.mean(axis=1) * DEVIATION + MEAN) * 255
        print(f"mean colour of the {name}: {colour.round().astype(int).tolist()}")
    print("sent a GIF:", refusal)
    if pixels.shape != (2, 3, 48, 48) or not all(np.allclose(image, expected_pixels(), atol=1e-4) for image in pixels):
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()
