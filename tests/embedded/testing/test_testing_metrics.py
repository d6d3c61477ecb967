"""Metrics of models under test."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from naiad.core.errors import ModelError
from naiad.testing import load


class Counts:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        self.requests = family("requests_total", "Requests.", family.COUNTER)
        self.sizes = family("sizes", "Sizes.", family.HISTOGRAM)
        self.size = self.sizes.Metric(buckets=[1, 10])

    def execute(self, requests):
        self.requests.Metric({"model": "counts"}).increment(len(requests))
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        for tensor in tensors:
            self.size.observe(tensor.as_numpy().size)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]) for tensor in tensors]


def test_a_test_sees_what_the_model_counted():
    with load(Counts) as model, load(Counts) as other:
        for size in (1, 2, 30):
            model.infer({"IN": np.ones(size, "f4")})
        assert model.metrics.value_of("requests_total", model="counts") == 3
        assert model.metrics.families["sizes"].find().observed == [1, 2, 30]
        assert model.metrics.families["sizes"].find().buckets == (1.0, 10.0)
        assert other.metrics.value_of("requests_total", model="counts") is None


def test_the_rules_of_metrics_hold_as_in_a_server():
    class Breaks:
        def initialize(self, args):
            family = pb_utils.MetricFamily("twice", "", pb_utils.MetricFamily.GAUGE)
            family.Metric().observe(1)

    with pytest.raises(ModelError, match="TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"):
        load(Breaks)


def test_a_family_goes_with_its_object():
    with load(Counts) as model:
        del model.instance.requests
        assert list(model.metrics.families) == ["sizes"]
