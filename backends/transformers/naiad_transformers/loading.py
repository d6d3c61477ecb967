"""Reads weights with the library, and sets what it needs in this process first."""

from __future__ import annotations

import os
from typing import Any

from saved_models.settings import ModelSettings, threads_for_instance

from naiad_transformers.source import Source

_SEQUENCE_TO_SEQUENCE = "sequence-to-sequence"


def prepare_process(settings: ModelSettings, source: Source) -> None:
    """Set what the libraries read when they are imported: no network unless it is allowed, and threads."""
    if not source.allows_download:
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    threads = settings.integer("INTRA_OP_THREAD_COUNT", 0)
    threads = threads if threads > 0 else threads_for_instance()
    if threads:
        # Of the tokenizers.
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
        import torch

        torch.set_num_threads(threads)


def load(settings: ModelSettings, source: Source, kind: str) -> Any:
    """The pipeline of a task, or model and tokenizer of one that has no pipeline.

    Raises:
        ModelLoadError: If the library cannot read the weights, or the instance is on a GPU that it cannot use.
    """
    import torch
    import transformers
    from huggingface_hub import constants

    if not source.allows_download:
        # Again: where it was imported before this process was forked, it has read the variable already.
        constants.HF_HUB_OFFLINE = True
    device = torch.device("cpu")
    if settings.kind == "GPU":
        if not torch.cuda.is_available():
            raise settings.error(
                f"its instance is on GPU {settings.device}, and PyTorch {torch.__version__} of this environment finds "
                "no GPU that it can use; choose an environment with a build for CUDA (execution-env-path of "
                "--backend-config=transformers names it), or use KIND_CPU in instance_group"
            )
        device = torch.device("cuda", settings.device)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    dtype = settings.parameters.get("dtype", "auto")
    given = {"trust_remote_code": source.allows_code, "local_files_only": not source.allows_download}
    try:
        if kind == _SEQUENCE_TO_SEQUENCE:
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source.place, dtype=dtype, **given)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.place, **given)
            return model.to(device).eval(), tokenizer
        return transformers.pipeline(
            kind,
            model=source.place,
            device=device,
            dtype=dtype,
            trust_remote_code=source.allows_code,
        )
    except Exception as problem:  # noqa: BLE001 - the library raises anything
        raise settings.error(_explain(problem, source, transformers.__version__)) from None


def _explain(problem: Exception, source: Source, version: str) -> str:
    text = str(problem).strip()
    if "trust_remote_code" in text:
        return (
            f"'{source.place}' needs code that is beside its weights, which is not run; if you trust it, allow it by "
            'the parameter trust_remote_code: "true" or by --backend-config=transformers,trust-remote-code=true'
        )
    sentence = " ".join(text.split("\n\n", 1)[0].split()) or type(problem).__name__
    return (
        f"transformers {version} cannot read '{source.place}' for the task {source.task}: {sentence}; save model and "
        "tokenizer there by save_pretrained"
    )
