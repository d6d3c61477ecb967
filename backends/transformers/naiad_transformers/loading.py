"""Reads weights with the library, and sets what it needs in this process first."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Iterable

import triton_python_backend_utils as pb_utils
from saved_models.settings import ModelSettings, threads_for_instance

from naiad_transformers.source import OTHER_TASK, Source, architecture, known_task

_SEQUENCE_TO_SEQUENCE, _VECTORS, _IMAGES = "sequence-to-sequence", "feature-extraction", "image-classification"
_CLASSES = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "fill-mask": "AutoModelForMaskedLM",
    "zero-shot-classification": "AutoModelForSequenceClassification",
    _VECTORS: "AutoModel",
    _IMAGES: "AutoModelForImageClassification",
    _SEQUENCE_TO_SEQUENCE: "AutoModelForSeq2SeqLM",
}
_FEW_WORDS = 2  # entries besides the special ones in the vocabulary that the library makes where a folder has none


def prepare_process(settings: ModelSettings, source: Source) -> None:
    """Set what the libraries read when they are imported: no network unless it is allowed, and threads."""
    if not source.allows_download:
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    threads = settings.integer("INTRA_OP_THREAD_COUNT", 0)
    threads = threads if threads > 0 else threads_for_instance()
    if threads:
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # of the tokenizers
        import torch

        torch.set_num_threads(threads)


def load(settings: ModelSettings, source: Source, kind: str) -> Any:
    """The pipeline of a task, or `model` and `tokenizer` of one that is asked without a pipeline."""
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
    given = {"trust_remote_code": source.allows_code, "local_files_only": not source.allows_download}
    name = settings.parameters.get("dtype", "auto")
    dtype = {"torch_dtype" if transformers.__version__ < "5" else "dtype": getattr(torch, name, name)}
    try:
        # Their own classes: a pipeline also takes models of other tasks, and gives missing weights random values.
        model, found = getattr(transformers, _CLASSES[kind]).from_pretrained(
            source.place, output_loading_info=True, **dtype, **given
        )
        check_weights(model, found["missing_keys"], kind, source, settings)
        if kind == _IMAGES:
            processor = transformers.AutoImageProcessor.from_pretrained(source.place, **given)
            return transformers.pipeline(kind, model=model, image_processor=processor, device=device)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.place, **given)
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)) + _FEW_WORDS:
            raise settings.error(
                f"'{source.place}' has no tokenizer, or one without words: {type(tokenizer).__name__} has "
                f"{len(tokenizer)} entries; save it there by its save_pretrained"
            )
        config = getattr(model.config, "get_text_config", lambda: model.config)()
        if getattr(config, "pad_token_id", None) is None:  # classifiers such as GPT-2 and Llama look for it in batches
            config.pad_token_id = tokenizer.pad_token_id
        if config.model_type != "xlnet":  # whose classes are in the last token
            tokenizer.padding_side = "right"  # on the left it would move the positions of GPT-2 and others
        limit = getattr(config, "max_position_embeddings", None) or 0
        if 0 < limit < tokenizer.model_max_length:  # some tokenizers have none, and longer texts would fail
            tokenizer.model_max_length = limit
        if kind in {_VECTORS, _SEQUENCE_TO_SEQUENCE}:
            return SimpleNamespace(model=model.to(device).eval(), tokenizer=tokenizer)
        return transformers.pipeline(kind, model=model, tokenizer=tokenizer, device=device)
    except pb_utils.ModelLoadError:
        raise
    except Exception as problem:  # noqa: BLE001 - the library raises anything
        raise settings.error(_explain(problem, source, transformers.__version__)) from None


def check_weights(model: Any, missing: Iterable[str], kind: str, source: Source, settings: ModelSettings) -> None:
    """Refuse weights of another task: the library gives what is missing random values."""
    if kind == _VECTORS:  # needs no pooler, which models that were trained for words lack
        lacking = sorted(key for key in missing if "pooler" not in key)
        trained = ""
    else:
        lacking = sorted(missing)
        trained = known_task(source.config)
    if lacking or trained not in {"", known_task({"architectures": [type(model).__name__]})}:
        lack = f" and lack {', '.join(lacking[:3])}" if lacking else ""
        raise settings.error(
            f"the weights in '{source.place}' are of {architecture(source.config)}{lack}, so the task {source.task} "
            f"would give values without meaning; {OTHER_TASK}"
        )


def _explain(problem: Exception, source: Source, version: str) -> str:
    text = str(problem).strip()
    if "trust_remote_code" in text:
        return (
            f"'{source.place}' needs code that is beside its weights, which is not run; if you trust it, allow it by "
            'the parameter trust_remote_code: "true" or by --backend-config=transformers,trust-remote-code=true'
        )
    if "Unrecognized configuration class" in text:
        return (
            f"transformers {version} has no model for the task {source.task} in '{source.place}' "
            f"({architecture(source.config)}); {OTHER_TASK}"
        )
    sentence = " ".join(text.split("\n\n", 1)[0].split()) or type(problem).__name__
    return (
        f"transformers {version} cannot read '{source.place}' for the task {source.task}: {sentence}; save model and "
        "tokenizer there by save_pretrained"
    )
