import dataclasses
from typing import Any


@dataclasses.dataclass
class AsyncEngineArgs:
    model: str = "facebook/opt-125m"
    served_model_name: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_lora: bool = False
    disable_log_stats: bool = False
    enable_sleep_mode: bool = False
    runner: str = "auto"
    reasoning_parser: str = ""
    seed: int = 0
    hf_overrides: dict[str, Any] | None = None
