"""Counts the words of texts, and tells operators about them with metrics of its own."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Its metrics appear on the server's /metrics, beside the server's own."""

    def initialize(self, args):
        """Make the metrics; families and metrics live as long as the model holds them."""
        # The server adds no labels: put the model's name into the metric's where several models may have it.
        self.words_family = pb_utils.MetricFamily(
            name="example_words_total", description="Words counted", kind=pb_utils.MetricFamily.COUNTER
        )
        self.words = {}  # by language: a metric each, of one family
        self.longest_family = pb_utils.MetricFamily(
            name="example_longest_text", description="Words of the longest text", kind=pb_utils.MetricFamily.GAUGE
        )
        self.longest = self.longest_family.Metric(labels={"model": args["model_name"]})
        self.sizes_family = pb_utils.MetricFamily(
            name="example_text_words", description="Words of each text", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        self.sizes = self.sizes_family.Metric(labels={"model": args["model_name"]}, buckets=[2, 4, 8])

    def execute(self, requests):
        """Answer each request by itself."""
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
        """One text more."""
        if language not in self.words:
            self.words[language] = self.words_family.Metric(labels={"language": language})
        self.words[language].increment(count)  # a counter only grows
        self.longest.set(max(self.longest.value(), count))
        self.sizes.observe(count)
