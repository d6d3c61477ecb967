"""PNG files in, normalised pixels out: the preprocessing for an image model."""

import numpy as np
import triton_python_backend_utils as pb_utils
from decode_png import read_png  # decode_png.py is in the same folder

SIZE = 48
# Mean and standard deviation of the images with which many published models were trained.
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class TritonPythonModel:
    """Decodes, crops, resizes and normalises."""

    def execute(self, requests):
        """Compute one response for each request, so that a malformed file fails only its own request."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """The images of one request."""
        files = pb_utils.get_input_tensor_by_name(request, "PNG").as_numpy()
        try:
            images = [prepare(read_png(file)) for file in files[:, 0]]
        except ValueError as problem:
            error = pb_utils.TritonError(f"cannot read the image: {problem}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", np.stack(images))])


def prepare(image):
    """The square in the middle, resized and normalised, channels first."""
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    resized = resize(image[top : top + side, left : left + side].astype(np.float32) / 255, SIZE)
    return ((resized - MEAN) / DEVIATION).transpose(2, 0, 1)


def resize(square, size):
    """Bilinear interpolation, between rows and then between columns."""
    side = len(square)
    at = np.clip((np.arange(size) + 0.5) * side / size - 0.5, 0, side - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, side - 1)
    part = (at - low).astype(np.float32)[:, None, None]
    for _ in range(2):
        square = (square[low] * (1 - part) + square[high] * part).swapaxes(0, 1)
    return square
