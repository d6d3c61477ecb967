"""The tasks: their tensors, and how a pipeline is asked for them.

Each has an output `JSON` with what the library returns for a row, and tensors of the values that clients mostly want.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import ModelSettings

_STRING, _FLOAT = "TYPE_STRING", "TYPE_FP32"
_TEXT, _PAIR, _IMAGE, _CANDIDATES = "TEXT", "TEXT_PAIR", "IMAGE", "CANDIDATE_LABELS"
_JSON = "JSON"
_TOP = 5


@dataclass(frozen=True)
class Row:
    """What is answered about one row of a batch.

    Attributes:
        tensors: The values of outputs but for `JSON`.
        answer: What the library returned.
        lacking: Why there are no values of outputs; empty if there are.
    """

    tensors: Mapping[str, Any]
    answer: Any
    lacking: str = ""


Ask = Callable[[Arrays], List[Row]]
"""Asks about all rows of a batch."""


@dataclass(frozen=True)
class Task:
    """What is served for a task.

    Attributes:
        interface: Its tensors.
        kind: The library's name of its pipeline, or what is loaded instead.
        make: Makes what asks, from what was loaded.
    """

    interface: ModelInterface
    kind: str
    make: Callable[[Any, ModelSettings], Ask]


def task_of(name: str, config: Mapping[str, Any], settings: ModelSettings) -> Task:
    """The task of this name, for weights with this `config.json`."""
    labels = _label_count(config)
    classes = (_output("LABEL", _STRING, 1), _output("SCORE", _FLOAT, 1), _output("SCORES", _FLOAT, labels))
    if name == "text-classification":
        has_pair = any(tensor.name == _PAIR for tensor in settings.inputs)
        return _task(name, (_TEXT, _PAIR) if has_pair else (_TEXT,), classes, TextClassification)
    if name == "image-classification":
        return _task(name, (_IMAGE,), classes, ImageClassification)
    if name == "token-classification":
        return _task(name, (_TEXT,), (), TokenClassification)
    if name == "fill-mask":
        top = _top(settings)
        outputs = (_output("TOKEN", _STRING, top), _output("SCORE", _FLOAT, top), _output("SEQUENCE", _STRING, top))
        return _task(name, (_TEXT,), outputs, FillMask)
    if name == "feature-extraction":
        size = next((config[key] for key in ("hidden_size", "d_model", "dim", "n_embd") if key in config), -1)
        return _task(name, (_TEXT,), (_output("EMBEDDING", _FLOAT, int(size)),), FeatureExtraction)
    if name == "zero-shot-classification":
        outputs = (_output("LABELS", _STRING, -1), _output("SCORES", _FLOAT, -1))
        fixed = "candidate_labels" in settings.parameters
        return _task(name, (_TEXT,) if fixed else (_TEXT, _CANDIDATES), outputs, ZeroShot)
    outputs = (_output("GENERATED_TEXT", _STRING, 1),)
    return _task("sequence-to-sequence", (_TEXT,), outputs, TextToText)


def _task(
    kind: str, inputs: Tuple[str, ...], outputs: Tuple[ModelTensor, ...], make: Callable[[Any, ModelSettings], Ask]
) -> Task:
    given = tuple(_output(name, _STRING, -1 if name == _CANDIDATES else 1) for name in inputs)
    return Task(ModelInterface(given, (*outputs, _output(_JSON, _STRING, 1))), kind, make)


def _output(name: str, data_type: str, size: int) -> ModelTensor:
    return ModelTensor(name, data_type, (-1, size))


def _label_count(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    # The library's default, which it does not write.
    return len(labels) if isinstance(labels, dict) else int(config.get("num_labels", 2))


def _top(settings: ModelSettings) -> int:
    return max(settings.integer("top_k", _TOP), 1)


def _options(settings: ModelSettings, key: str) -> Dict[str, Any]:
    """The object in a parameter with JSON.

    Raises:
        ModelLoadError: If it is none.
    """
    text = settings.parameters.get(key)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise settings.wrong_parameter(key, 'a JSON object such as {"max_new_tokens": 60}')
    return found


class RowRunner:
    """Puts the answers about the rows of a batch together as tensors."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def run(self, arrays: Arrays, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names.

        Raises:
            TritonModelException: If a row has no value for one.
        """
        rows = self._ask(arrays)
        return {name: _array([_value(row, name) for row in rows]) for name in wanted}


def _value(row: Row, name: str) -> Any:
    if name == _JSON:
        return json.dumps(row.answer, ensure_ascii=False, default=_plain)
    if row.lacking:
        raise pb_utils.TritonModelException(row.lacking)
    return row.tensors[name]


def _array(rows: List[Any]) -> np.ndarray[Any, Any]:
    """One row each: a text, a number, or a list of either."""
    listed = [row if isinstance(row, (list, np.ndarray)) else [row] for row in rows]
    if any(len(row) and isinstance(row[0], str) for row in listed):
        found: np.ndarray[Any, Any] = np.empty((len(listed), len(listed[0])), np.object_)
        for number, row in enumerate(listed):
            found[number] = row
        return found
    return np.asarray(listed, np.float32)


def _plain(value: Any) -> Any:
    """Numbers of numpy, which the library leaves in some results."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")


def _texts(arrays: Arrays, name: str = _TEXT) -> List[str]:
    """The text of each row."""
    try:
        return [value.decode() for value in arrays[name].reshape(len(arrays[name]), -1)[:, 0]]
    except UnicodeDecodeError as problem:
        raise pb_utils.TritonModelException(f"input '{name}' has a string that is not UTF-8: {problem}") from None


def _classes(entries: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]) -> Row:
    """The outputs of a classification, from the library's list of classes, best first."""
    scores = np.zeros(len(entries), np.float32)
    for entry in entries:
        scores[numbers[entry["label"]]] = entry["score"]
    best = entries[0]
    return Row({"LABEL": best["label"], "SCORE": best["score"], "SCORES": scores}, list(entries))


class TextClassification:
    """Classes of texts, or of pairs of texts."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = _options(settings, "options")

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`."""
        texts: List[Any] = list(_texts(arrays))
        if _PAIR in arrays:
            texts = [{"text": one, "text_pair": other} for one, other in zip(texts, _texts(arrays, _PAIR))]
        options = {"truncation": True, **self._options}
        found = self._asked(texts, top_k=None, batch_size=len(texts), **options)
        return [_classes(entries, self._asked.model.config.label2id) for entries in found]


class ImageClassification:
    """Classes of images, which are files such as PNG and JPEG in a tensor of bytes."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = _options(settings, "options")

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`."""
        files = arrays[_IMAGE].reshape(len(arrays[_IMAGE]), -1)[:, 0]
        images = [_image(data) for data in files]
        numbers = self._asked.model.config.label2id
        found = self._asked(images, top_k=len(numbers), batch_size=len(images), **self._options)
        return [_classes(entries, numbers) for entries in found]


def _image(data: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError) as problem:
        raise pb_utils.TritonModelException(
            f"input '{_IMAGE}' has {len(data)} bytes that are no image: {problem}; send the content of a file, such as "
            "PNG or JPEG"
        ) from None


class TokenClassification:
    """Classes of the parts of texts, whose number differs from text to text."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = _options(settings, "options")

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`."""
        texts = _texts(arrays)
        options = {"aggregation_strategy": "simple", **self._options}
        return [Row({}, entities) for entities in self._asked(texts, batch_size=len(texts), **options)]


class FillMask:
    """The likeliest words in place of a mask."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = {"tokenizer_kwargs": {"truncation": True}, **_options(settings, "options")}
        self._top = _top(settings)

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`."""
        texts = _texts(arrays)
        found = self._asked(texts, top_k=self._top, batch_size=len(texts), **self._options)
        # The library leaves out the outer list where there is one text.
        found = [found] if len(texts) == 1 else found
        return [_filled(entries) for entries in found]


def _filled(entries: List[Any]) -> Row:
    if isinstance(entries[0], list):
        lacking = (
            f"input '{_TEXT}' has {len(entries)} masks, for which there are no tensors; ask for the output {_JSON} "
            "alone, or send one mask"
        )
        return Row({}, entries, lacking)
    keys = {"TOKEN": "token_str", "SCORE": "score", "SEQUENCE": "sequence"}
    return Row({name: [entry[key] for entry in entries] for name, key in keys.items()}, entries)


class FeatureExtraction:
    """One vector for each text: the mean of those of its tokens, or the first token's."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = _options(settings, "options")
        self._pooling = settings.parameters.get("pooling", "mean")
        if self._pooling not in {"mean", "cls"}:
            raise settings.wrong_parameter("pooling", "mean or cls")
        self._is_normalized = settings.flag("normalize", default=False)

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`. The library's pipeline returns padding as if it were text, so it is not used here."""
        import torch

        asked = self._asked
        options = {"padding": True, "truncation": True, **self._options}
        given = asked.tokenizer(_texts(arrays), return_tensors="pt", **options).to(asked.device)
        with torch.inference_mode():
            hidden = asked.model(**given)[0].float()
            if self._pooling == "cls":
                pooled = hidden[:, 0]
            else:
                mask = given["attention_mask"].unsqueeze(-1)
                pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            if self._is_normalized:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors = pooled.cpu().numpy()
        return [Row({"EMBEDDING": vector}, vector) for vector in vectors]


class ZeroShot:
    """Classes that come with the request, or with the configuration."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = _options(settings, "options")
        text = settings.parameters.get("candidate_labels", "")
        self._fixed = tuple(label.strip() for label in text.split(",") if label.strip())

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`: one call for all rows with the same classes."""
        texts = _texts(arrays)
        rows: Dict[Tuple[str, ...], List[int]] = {}
        for number in range(len(texts)):
            rows.setdefault(self._labels(arrays, number), []).append(number)
        answers: List[Any] = [None] * len(texts)
        for labels, numbers in rows.items():
            given = [texts[number] for number in numbers]
            found = self._asked(
                given, candidate_labels=list(labels), batch_size=len(given) * len(labels), **self._options
            )
            for number, answer in zip(numbers, found):
                answers[number] = Row({"LABELS": answer["labels"], "SCORES": answer["scores"]}, answer)
        return answers

    def _labels(self, arrays: Arrays, row: int) -> Tuple[str, ...]:
        if _CANDIDATES not in arrays:
            return self._fixed
        return tuple(value.decode("utf-8", "replace") for value in arrays[_CANDIDATES][row].ravel())


class TextToText:
    """Texts from texts: summaries, translations, answers."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._model, self._tokenizer = asked
        self._options = _options(settings, "options")
        self._prefix = settings.parameters.get("prefix", "")

    def __call__(self, arrays: Arrays) -> List[Row]:
        """As `Ask`."""
        import torch

        texts = [self._prefix + text for text in _texts(arrays)]
        given = self._tokenizer(texts, return_tensors="pt", padding=True, truncation=True).to(self._model.device)
        with torch.inference_mode():
            generated = self._model.generate(**given, **self._options)
        found = self._tokenizer.batch_decode(generated, skip_special_tokens=True)
        return [Row({"GENERATED_TEXT": text}, {"generated_text": text}) for text in found]
