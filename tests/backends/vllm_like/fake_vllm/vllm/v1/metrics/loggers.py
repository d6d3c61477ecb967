"""Some of the metrics that vLLM registers with Prometheus' client, with its names, labels and kinds."""

import prometheus_client

NAMES = ["model_name", "engine"]
SECONDS = [0.001, 0.01, 0.1, 1.0, 10.0]


class PrometheusStatLogger:
    def __init__(self, model):
        self.model = model
        prometheus_client.Info("other", "Not one of vLLM's.")
        self.queries = self.made(prometheus_client.Counter, "vllm:prefix_cache_queries", "Queried tokens.")
        self.prompt = self.made(prometheus_client.Counter, "vllm:prompt_tokens", "Number of prefill tokens processed.")
        self.generated = self.made(prometheus_client.Counter, "vllm:generation_tokens", "Number of generation tokens.")
        self.usage = self.made(prometheus_client.Gauge, "vllm:kv_cache_usage_perc", "KV-cache usage.")
        self.iteration = self.made(
            prometheus_client.Histogram, "vllm:iteration_tokens_total", "Tokens of each step.", buckets=[1, 8, 16]
        )
        self.first = self.made(
            prometheus_client.Histogram, "vllm:time_to_first_token_seconds", "Time to first token.", buckets=SECONDS
        )
        self.success = prometheus_client.Counter(
            "vllm:request_success", "Processed requests.", [*NAMES, "finished_reason"]
        )
        for reason in ("stop", "length", "abort"):
            self.success.labels(model, "0", reason)
        config = prometheus_client.Gauge("vllm:cache_config_info", "The cache.", ["block_size", "engine"])
        config.labels("16", "0").set(1)

    def made(self, kind, name, text, **options):
        return kind(name, text, NAMES, **options).labels(self.model, "0")

    def record(self, prompt, generated, reason):
        if prompt:
            self.prompt.inc(len(prompt))
            self.queries.inc(len(prompt))
            self.first.observe(0.02)
        self.generated.inc(generated)
        self.usage.set(0.0 if reason else 0.25)
        self.iteration.observe(len(prompt) + generated)
        if reason:
            self.success.labels(self.model, "0", reason).inc()
