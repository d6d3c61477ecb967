"""Metrics with vLLM's names and labels: those that an engine measures itself, and the backend's own for all engines."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import triton_python_backend_utils as pb_utils

from vllm_like.engines.base import Engine, EngineMetric

_UNSUPPORTED = "metrics not supported"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
CACHE_USAGE, THROUGHPUT = "vllm:kv_cache_usage_perc", "vllm:avg_generation_throughput_toks_per_s"
_METRICS = (
    ("COUNTER", "vllm:prompt_tokens_total", "Number of prefill tokens processed."),
    ("COUNTER", "vllm:generation_tokens_total", "Number of generation tokens processed."),
    ("GAUGE", RUNNING, "Number of requests in model execution batches."),
    ("GAUGE", WAITING, "Number of requests waiting to be processed."),
    ("GAUGE", CACHE_USAGE, "KV-cache usage. 1 means 100 percent usage."),
    ("GAUGE", THROUGHPUT, "Average generation throughput in tokens/s."),
    ("HISTOGRAM", "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds."),
    ("HISTOGRAM", "vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds."),
    ("HISTOGRAM", "vllm:e2e_request_latency_seconds", "Histogram of end to end request latency in seconds."),
    ("HISTOGRAM", "vllm:request_prompt_tokens", "Number of prefill tokens processed."),
    ("HISTOGRAM", "vllm:request_generation_tokens", "Number of generation tokens processed."),
    ("HISTOGRAM", "vllm:request_params_n", "Histogram of the n request parameter."),
)
_BUCKETS = {
    "vllm:time_to_first_token_seconds": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
        *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    "vllm:time_per_output_token_seconds": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    "vllm:e2e_request_latency_seconds": (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    "vllm:request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
}  # of histograms; those of numbers of tokens depend on the model
_RATE_SECONDS = 1.0  # how often the usage of the cache and the throughput are measured while requests run
_UNKNOWN_LENGTH = 32768


def token_buckets(most: int) -> List[float]:
    """Bounds 1, 2, 5, 10, 20, 50, ... up to *most*, as in vLLM."""
    buckets: List[float] = []
    power = 1
    while power <= most:
        buckets += [float(power * step) for step in (1, 2, 5) if power * step <= most]
        power *= 10
    return buckets


class _Unmeasured:
    """In place of a metric that the engine measures itself."""

    def increment(self, _: float) -> None:
        """Do nothing, as the other methods."""

    set = observe = increment


class _EngineMetrics:
    """The metrics that an engine measures, on the server's page.

    A real Triton's histograms cannot take values that were counted elsewhere; there they are left out.
    """

    def __init__(self, read: Callable[[], Sequence[EngineMetric]], labels: Mapping[str, str], new_family: Any) -> None:
        self._read = read
        self._labels = labels
        self._new_family = new_family
        self._families: Dict[str, Any] = {}
        self._shown: Dict[Tuple[str, Tuple[Tuple[str, str], ...]], Tuple[Any, EngineMetric]] = {}

    def update(self) -> None:
        for new in self._read():
            key = (new.name, tuple(sorted(new.labels.items())))
            metric, before = self._shown.get(key) or (self._new_metric(new), None)
            self._shown[key] = (metric, new)
            _ADVANCES[new.kind](metric, before, new)

    def _new_metric(self, new: EngineMetric) -> Any:
        if new.name not in self._families:
            kind = getattr(pb_utils.MetricFamily, new.kind.upper())
            self._families[new.name] = self._new_family(new.name, new.description, kind)
        more = {"buckets": list(new.buckets)} if new.kind == "histogram" else {}
        return self._families[new.name].Metric(labels={**new.labels, **self._labels}, **more)


def _count_on(metric: Any, before: Optional[EngineMetric], new: EngineMetric) -> None:
    start = before.value if before is not None and before.value <= new.value else 0.0
    if new.value > start:
        metric.increment(new.value - start)


def _set(metric: Any, before: Optional[EngineMetric], new: EngineMetric) -> None:
    if before is None or before.value != new.value:
        metric.set(new.value)


def _observe_on(metric: Any, before: Optional[EngineMetric], new: EngineMetric) -> None:
    has_grown = before is not None and sum(before.counts) <= sum(new.counts)
    counts = before.counts if before is not None and has_grown else (0,) * len(new.counts)
    start = before.value if before is not None and has_grown else 0.0
    if sum(new.counts) > sum(counts) and hasattr(metric, "observe_counts"):
        metric.observe_counts(new.value - start, [now - then for now, then in zip(new.counts, counts)])


_ADVANCES = {"counter": _count_on, "gauge": _set, "histogram": _observe_on}


class RequestProgress:
    """One request for text in the gauges of its model, where it waits until it starts."""

    def __init__(self, metrics: Metrics, choices: int) -> None:
        self.prompt_tokens = self.tokens = 0  # of its prompt, 0 while they are unknown, and generated
        self.choices = choices  # how many texts are generated at once; each has the prompt in its part of the cache
        self._metrics = metrics
        self._gauge = ""
        self._count_in(WAITING)

    def start(self) -> None:
        if self._gauge == WAITING:
            self._count_in(RUNNING)

    def add_tokens(self, count: int) -> None:
        self.tokens += count
        self._metrics.on_tokens(count)

    def end(self) -> None:
        self._count_in("")

    def _count_in(self, gauge: str) -> None:
        before, self._gauge = self._gauge, gauge
        self._metrics.on_move(self, before, gauge)


class Metrics:
    """The metrics of one model."""

    def __init__(self) -> None:
        self.is_on = False
        self._families: List[Any] = []
        self._metrics: Dict[str, Any] = {}
        self._engine: Any = None
        self._of_engine: Any = None
        self._lock = threading.Lock()
        self._running: Set[RequestProgress] = set()
        self._is_running = threading.Event()
        self._is_closed = False
        self._new_tokens = 0

    def open(self, labels: Dict[str, str], engine: Engine) -> bool:
        """Register the metrics of *engine*; return False if the server has metrics disabled.

        *labels* are `model` and `version`, those of Triton's backend. vLLM's own, `model_name` and `engine`, join them.
        """
        self._engine = engine
        self._of_engine = _EngineMetrics(engine.metrics, labels, self._family)
        measured = {metric.name for metric in engine.metrics()}
        labels = {**labels, "model_name": labels["model"], "engine": "0"}
        tokens = token_buckets(engine.max_model_len or _UNKNOWN_LENGTH)
        try:
            for kind, name, text in _METRICS:
                options = {"buckets": list(_BUCKETS.get(name, tokens))} if kind == "HISTOGRAM" else {}
                if name in measured:
                    self._metrics[name] = _Unmeasured()
                else:
                    family = self._family(name, text, getattr(pb_utils.MetricFamily, kind))
                    self._metrics[name] = family.Metric(labels=labels, **options)
            self._of_engine.update()
        except pb_utils.TritonModelException as error:
            if _UNSUPPORTED not in str(error):
                raise
            return False
        self.is_on = True
        threading.Thread(target=self._measure_rates, name="metrics", daemon=True).start()
        return True

    def close(self) -> None:
        self._is_closed = True
        self._is_running.set()

    def on_move(self, request: RequestProgress, before: str, after: str) -> None:
        """Count a request in the gauge *after* instead of *before*; an empty name stands for none."""
        if not self.is_on:
            return
        for name, step in ((before, -1), (after, 1)):
            if name:
                self._metrics[name].increment(step)
        with self._lock:
            self._running.discard(request)
            if after == RUNNING:
                self._running.add(request)
                self._is_running.set()

    def on_tokens(self, count: int) -> None:
        with self._lock:  # engines have several threads
            self._new_tokens += count

    def _measure_rates(self) -> None:
        """Measure throughput and the cache's usage, and read the engine's metrics, each second while requests run.

        And once after the last one.
        """
        while True:
            self._is_running.wait()
            if self._is_closed:
                return
            with self._lock:
                self._new_tokens = 0
            is_idle, since = False, time.monotonic()
            while not is_idle and not self._is_closed:
                time.sleep(_RATE_SECONDS)
                is_idle, since = self._measure(since)

    def _measure(self, since: float) -> Tuple[bool, float]:
        """Set the gauges; return whether no request runs, and the time."""
        with self._lock:
            now, count, self._new_tokens = time.monotonic(), self._new_tokens, 0
            running = list(self._running)
            if not running:
                self._is_running.clear()
        self._of_engine.update()
        self._metrics[THROUGHPUT].set(count / (now - since) if running else 0.0)
        tokens = sum(each.prompt_tokens * each.choices + each.tokens for each in running)
        self._metrics[CACHE_USAGE].set(self._engine.kv_cache_usage(tokens) if running else 0.0)
        return not running, now

    def _family(self, name: str, text: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name, text, kind)
        self._families.append(family)  # the server removes a family that is garbage collected
        return family

    def count_tokens(self, prompt_tokens: int, tokens: int) -> None:
        """Count the tokens of a request that has ended, completed or cancelled."""
        if self.is_on:
            self._metrics["vllm:prompt_tokens_total"].increment(prompt_tokens)
            self._metrics["vllm:generation_tokens_total"].increment(tokens)

    def record_request(
        self, prompt_tokens: int, tokens: Sequence[int], first: float, others: Sequence[float], whole: float
    ) -> None:
        """Record a completed request: tokens of each choice; seconds to the first one, of each other, of the whole."""
        total, metrics = sum(tokens), self._metrics
        self.count_tokens(prompt_tokens, total)
        metrics["vllm:time_to_first_token_seconds"].observe(first)
        for each in others:
            metrics["vllm:time_per_output_token_seconds"].observe(each)
        metrics["vllm:e2e_request_latency_seconds"].observe(whole)
        metrics["vllm:request_prompt_tokens"].observe(prompt_tokens)
        metrics["vllm:request_generation_tokens"].observe(total)
        metrics["vllm:request_params_n"].observe(len(tokens))
