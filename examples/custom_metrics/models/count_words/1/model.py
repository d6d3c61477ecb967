"""Counts the words of texts, and exports the counts as metrics."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Its metrics appear on the server's /metrics page, together with the server's own."""

    def initialize(self, args):
        """Create the metrics; families and metrics exist as long as the model keeps references to them."""
        # The server adds no labels: if several models use the same metric, label it with the model's name.
        self.words_family = pb_utils.MetricFamily(
            name="example_words_total", description="Words counted", kind=pb_utils.MetricFamily.COUNTER
        )
        self.words = {}  # one metric of the family for each language
        self.longest_family = pb_utils.MetricFamily(
            name="example_longest_text", description="Words of the longest text", kind=pb_utils.MetricFamily.GAUGE
        )
        self.longest = self.longest_family.Metric(labels={"model": args["model_name"]})
        self.sizes_family = pb_utils.MetricFamily(
            name="example_text_words", description="Words of each text", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        self.sizes = self.sizes_family.Metric(labels={"model": args["model_name"]}, buckets=[2, 4, 8])

    def execute(self, requests):
        """Compute one response for each request."""
        responses = []
        for request in requests:
            text, language = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0].decode() for name in ("TEXT", "LANGUAGE")
            )
            count = len(text.split())
            self.report(language, count)
            words = pb_utils.Tensor("WORDS", np.array([count], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse([words]))
        return responses

    def report(self, language, count):
        """Count one text."""
        if language not in self.words:
            self.words[language] = self.words_family.Metric(labels={"language": language})
        self.words[language].increment(count)  # a counter only grows
        self.longest.set(max(self.longest.value(), count))
        self.sizes.observe(count)
