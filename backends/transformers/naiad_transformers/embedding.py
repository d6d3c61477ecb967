"""How the vectors of tokens become one of a text: by parameters, else as the folder of sentence-transformers says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from saved_models.settings import ModelSettings

from naiad_transformers.source import MODULES, WEIGHTS, read_json

_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # the library's names, by the keys that it wrote before it had them
_SERVED = ["Transformer", "Pooling", "Normalize"]
_DEFAULTS: Dict[str, Tuple[object, ...]] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "model_type": ("SentenceTransformer",),
    "processing_kwargs": (),
    "query_expansion": (),
    "truncate_dim": (),
}  # settings that change vectors, with the values that are served


@dataclass(frozen=True)
class Embedding:
    """How texts become vectors."""

    pooling: str  # the library's name of how the tokens' vectors become one
    is_normalized: bool  # whether vectors have the length 1
    prefix: str  # what is put before each text
    max_tokens: Optional[int]  # tokens to which texts are cut; None for as many as the tokenizer says
    is_lowered: bool  # whether texts are in small letters

    def prepare(self, text: str) -> str:
        return (self.prefix + text).lower() if self.is_lowered else self.prefix + text

    def pool(self, hidden: Any, mask: Any) -> Any:
        """The vector of each text from those of its tokens, *hidden*; *mask* has 1 for tokens, and 0 for padding."""
        import torch

        counts = mask.cumsum(1) * mask
        if self.pooling in {"cls", "lasttoken"}:
            places = mask.argmax(1) if self.pooling == "cls" else counts.argmax(1)
            pooled = hidden[torch.arange(len(hidden)), places]
        elif self.pooling == "max":
            pooled = hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1)
        else:
            weights = (counts if self.pooling == "weightedmean" else mask).unsqueeze(-1)
            total = weights.sum(1).clamp(min=1)
            pooled = (hidden * weights).sum(1) / (total.sqrt() if self.pooling == "mean_sqrt_len_tokens" else total)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.is_normalized else pooled


def read_embedding(weights: Path, settings: ModelSettings) -> Embedding:
    """What parameters and folder say about vectors; ModelLoadError if they ask for what is not served."""
    folder = weights.parent if weights.name == WEIGHTS else weights
    modules = read_json(folder / MODULES, settings) or []
    kinds = [str(module["type"]) for module in modules]
    names = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in kinds]
    if modules and names not in (_SERVED, _SERVED[:2]):
        wrong = next((name for name in names if name not in _SERVED), ", ".join(names))
        raise _not_served(settings, folder / MODULES, f"modules {wrong}", "Transformer, Pooling and Normalize")
    general = _served(folder / "config_sentence_transformers.json", settings)
    texts = _served(next(weights.glob("sentence_*_config.json"), weights / "none"), settings)
    pooled = _served(folder / modules[1]["path"] / "config.json", settings) if modules else {"pooling_mode": "mean"}
    chosen = pooled.get("pooling_mode") or [name for key, name in _POOLINGS.items() if pooled.get(key)] or "mean"
    if isinstance(chosen, list) and len(chosen) == 1:
        (chosen,) = chosen
    pooling = settings.parameters.get("pooling", chosen)
    if pooling not in _POOLINGS.values():
        if "pooling" in settings.parameters:
            raise settings.wrong_parameter("pooling", f"one of {', '.join(_POOLINGS.values())}")
        raise _not_served(settings, folder / modules[1]["path"], f"pooling {pooling}", ", ".join(_POOLINGS.values()))
    prompt = (general.get("prompts") or {}).get(general.get("default_prompt_name"), "")
    prefix = settings.parameters.get("prefix", prompt)
    if prefix and not pooled.get("include_prompt", True):
        raise _not_served(
            settings, folder / modules[1]["path"], f"vectors without the prefix '{prefix}'", "those with it"
        )
    return Embedding(
        pooling,
        settings.flag("normalize", default=names == _SERVED),
        prefix,
        texts.get("max_seq_length"),
        bool(texts.get("do_lower_case")),
    )


def _served(path: Path, settings: ModelSettings) -> Dict[str, Any]:
    """The settings in a file, none of which asks for what is not served; empty without the file."""
    found = read_json(path, settings) or {}
    for key, values in _DEFAULTS.items():
        if found.get(key) and found[key] not in values:
            raise _not_served(settings, path, f"{key} {found[key]}", " or ".join(map(str, values)) or "none")
    return dict(found)


def _not_served(settings: ModelSettings, path: Path, what: str, served: str) -> Exception:
    return settings.error(
        f"'{path}' asks for {what}, and the task feature-extraction serves {served}: its vectors would be others; "
        "serve it with sentence-transformers by a model.py"
    )
