"""Metrics with vLLM's names, measured by the backend itself and so available with every engine."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import triton_python_backend_utils as pb_utils

_UNSUPPORTED = "metrics not supported"
_COUNTERS = (
    ("vllm:prompt_tokens_total", "Number of prefill tokens processed."),
    ("vllm:generation_tokens_total", "Number of generation tokens processed."),
)
_FIRST_TOKEN_SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_PER_TOKEN_SECONDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_LATENCY_SECONDS = [1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
_CHOICES = [1.0, 2.0, 5.0, 10.0, 20.0]
_UNKNOWN_LENGTH = 32768


def token_buckets(most: int) -> List[float]:
    """Bounds 1, 2, 5, 10, 20, 50, ... up to *most*, as in vLLM."""
    buckets: List[float] = []
    power = 1
    while power <= most:
        buckets += [float(power * step) for step in (1, 2, 5) if power * step <= most]
        power *= 10
    return buckets


class Metrics:
    """The metrics of one model.

    Attributes:
        is_on: Whether they are recorded.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._families: List[Any] = []
        self._metrics: Dict[str, Any] = {}

    def open(self, labels: Dict[str, str], max_model_len: int) -> bool:
        """Register the metrics; return False if the server has metrics disabled."""
        tokens = token_buckets(max_model_len or _UNKNOWN_LENGTH)
        histograms = (
            ("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_SECONDS),
            (
                "vllm:time_per_output_token_seconds",
                "Histogram of time per output token in seconds.",
                _PER_TOKEN_SECONDS,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "Histogram of end to end request latency in seconds.",
                _LATENCY_SECONDS,
            ),
            ("vllm:request_prompt_tokens", "Number of prefill tokens processed.", tokens),
            ("vllm:request_generation_tokens", "Number of generation tokens processed.", tokens),
            ("vllm:request_params_n", "Histogram of the n request parameter.", _CHOICES),
        )
        try:
            for name, text in _COUNTERS:
                family = self._family(name, text, pb_utils.MetricFamily.COUNTER)
                self._metrics[name] = family.Metric(labels=labels)
            for name, text, buckets in histograms:
                family = self._family(name, text, pb_utils.MetricFamily.HISTOGRAM)
                self._metrics[name] = family.Metric(labels=labels, buckets=buckets)
        except pb_utils.TritonModelException as error:
            if _UNSUPPORTED not in str(error):
                raise
            return False
        self.is_on = True
        return True

    def _family(self, name: str, text: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name, text, kind)
        self._families.append(family)  # the server removes a family that is garbage collected
        return family

    def record_request(
        self, *, prompt_tokens: int, tokens: Sequence[int], first_seconds: float, seconds: float
    ) -> None:
        """Record a completed request; *tokens* has one number for each choice."""
        total = sum(tokens)
        metrics = self._metrics
        metrics["vllm:prompt_tokens_total"].increment(prompt_tokens)
        metrics["vllm:generation_tokens_total"].increment(total)
        metrics["vllm:time_to_first_token_seconds"].observe(first_seconds)
        longest = max(tokens)
        if longest > 1:
            each = (seconds - first_seconds) / (longest - 1)
            metrics["vllm:time_per_output_token_seconds"].observe(each)
        metrics["vllm:e2e_request_latency_seconds"].observe(seconds)
        metrics["vllm:request_prompt_tokens"].observe(prompt_tokens)
        metrics["vllm:request_generation_tokens"].observe(total)
        metrics["vllm:request_params_n"].observe(len(tokens))
