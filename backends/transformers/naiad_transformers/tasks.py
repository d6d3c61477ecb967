"""The tasks: their tensors, and how a pipeline is asked for them.

Each has an output `JSON` with what the library returns for a row, and tensors of the values that clients mostly want.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
from saved_models.conversion import InputError, plain, row_values, strings
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import ModelSettings

from naiad_transformers.embedding import Embedding, read_embedding
from naiad_transformers.source import OTHER_TASK, Source, architecture

_STRING, _FLOAT = "TYPE_STRING", "TYPE_FP32"
_TEXT, _PAIR, _IMAGE, _CANDIDATES = "TEXT", "TEXT_PAIR", "IMAGE", "CANDIDATE_LABELS"
_JSON = "JSON"
_TOP = 5
_SIZES = ("word_embed_proj_dim", "hidden_size", "d_model", "dim", "n_embd")  # size of vectors in `config.json`


@dataclass(frozen=True)
class Row:
    """What is answered about one row of a batch."""

    tensors: Mapping[str, Any]  # values of outputs but for `JSON`
    answer: Any  # what the library returned
    lacking: str = ""  # why there are no values of outputs; empty if there are


Ask = Callable[[Arrays], List[Row]]  # asks about all rows of a batch


@dataclass(frozen=True)
class Task:
    """What is served for a task."""

    interface: ModelInterface
    kind: str  # the library's name of its pipeline, or what is loaded instead
    make: Callable[[Any, ModelSettings], Ask]  # makes what asks, from what was loaded


def task_of(source: Source, settings: ModelSettings) -> Task:
    """The task of weights; ModelLoadError if their folder asks for what is not served."""
    name, config = source.task, source.config
    labels = _label_count(config)
    classes = (_output("LABEL", _STRING, 1), _output("SCORE", _FLOAT, 1), _output("SCORES", _FLOAT, labels))
    if name == "text-classification":
        has_pair = any(tensor.name == _PAIR for tensor in settings.inputs)
        return _task(name, (_TEXT, _PAIR) if has_pair else (_TEXT,), classes, Classification)
    if name == "image-classification":
        return _task(name, (_IMAGE,), classes, Classification)
    if name == "token-classification":
        return _task(name, (_TEXT,), (), TokenClassification)
    if name == "fill-mask":
        top = _top(settings)
        outputs = (_output("TOKEN", _STRING, top), _output("SCORE", _FLOAT, top), _output("SEQUENCE", _STRING, top))
        return _task(name, (_TEXT,), outputs, FillMask)
    if name == "feature-extraction":
        size = next((config[key] for key in _SIZES if key in config), -1)
        make = partial(FeatureExtraction, embedding=read_embedding(source.folder, settings))
        return _task(name, (_TEXT,), (_output("EMBEDDING", _FLOAT, int(size)),), make)
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


class RowRunner:
    """Puts the answers about the rows of a batch together as tensors."""

    def __init__(self, ask: Ask, tokenizer: Any) -> None:
        self._ask = ask
        # Without a token for padding, texts are taken one by one; images need no tokenizer.
        self.is_joining = tokenizer is None or tokenizer.pad_token_id is not None

    def run(self, arrays: Arrays, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names; InputError if a row has no value for one."""
        count = len(next(iter(arrays.values())))
        parts = [slice(None)] if self.is_joining else [slice(row, row + 1) for row in range(count)]
        rows = [row for part in parts for row in self._ask({name: array[part] for name, array in arrays.items()})]
        return {name: _array([_value(row, name) for row in rows]) for name in wanted}


def try_out(rows: RowRunner, asked: Any, task: Task, settings: ModelSettings, source: Source) -> None:
    """Ask about two small rows, one by one if they fail together: what would fail at each request fails at the load."""
    word = asked.tokenizer.mask_token if task.kind == "fill-mask" else "text"
    side = source.config.get("image_size", 224)  # as large as the model takes them: not all processors resize
    height, width = side if isinstance(side, list) else (side, side)
    image = b"P6 %d %d 255 " % (width, height) + bytes(3 * width * height)  # in black, as a file of the form PPM
    samples = {_TEXT: [f"this is a {word}", f"this is another {word} of a few words"], _PAIR: ["a text", "a text"]}
    samples.update({_CANDIDATES: ["a", "a"], _IMAGE: [image, image]})
    arrays = {tensor.name: np.array([samples[tensor.name]], np.object_).T for tensor in task.interface.inputs}
    names = [tensor.name for tensor in settings.outputs]
    try:
        try:
            rows.run(arrays, names)
        except Exception:  # noqa: BLE001 - the library raises anything
            rows.is_joining = False  # its pipelines divide no batches of a few models, such as XLNet
            rows.run(arrays, names)
    except Exception as problem:  # noqa: BLE001 - the library raises anything
        mend = "correct the parameter options" if "options" in settings.parameters else OTHER_TASK
        raise settings.error(
            f"the task {source.task} of {architecture(source.config)} fails for two short inputs: "
            f"{type(problem).__name__}: {' '.join(str(problem).split())}; {mend}"
        ) from None


def _value(row: Row, name: str) -> Any:
    if name == _JSON:
        return json.dumps(row.answer, ensure_ascii=False, default=plain)
    if row.lacking:
        raise InputError(row.lacking)
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


def _texts(arrays: Arrays, name: str = _TEXT) -> List[str]:
    return list(strings(name, row_values(name, arrays[name])))


class _Asking:
    """What asks about the rows of a batch, with the parameter `options`."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        self._asked = asked
        self._options = settings.json_object("options", '{"max_new_tokens": 60}') or {}


class Classification(_Asking):
    """Classes of texts, of pairs of texts, or of images: files such as PNG and JPEG in a tensor of bytes."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        super().__init__(asked, settings)
        if "top_k" in self._options:
            raise settings.wrong_parameter("options", "an object without top_k, since SCORES has all classes")
        named = asked.model.config.id2label
        self._names = [named.get(number) for number in range(len(named))]
        if None in self._names:
            raise settings.error(
                f"id2label in its config.json has {len(named)} classes, and none of the number "
                f"{self._names.index(None)}; number them from 0 in the order of the logits"
            )
        # The library sorts by score and forgets the numbers, and classes may share a name: it gets numbers as names.
        asked.model.config.id2label = {number: str(number) for number in named}

    def __call__(self, arrays: Arrays) -> List[Row]:
        given: List[Any]
        if _IMAGE in arrays:
            given = [_image(data) for data in row_values(_IMAGE, arrays[_IMAGE])]
            options: Dict[str, Any] = {"top_k": len(self._names)}
        else:
            given = list(_texts(arrays))
            options = {"top_k": None, "truncation": True}
        if _PAIR in arrays:
            given = [{"text": one, "text_pair": other} for one, other in zip(given, _texts(arrays, _PAIR))]
        return [
            self._row(entries) for entries in self._asked(given, batch_size=len(given), **{**options, **self._options})
        ]

    def _row(self, entries: Sequence[Mapping[str, Any]]) -> Row:
        """The outputs for the library's list of classes, best first."""
        scores = np.zeros(len(self._names), np.float32)
        for entry in entries:
            scores[int(entry["label"])] = entry["score"]
        named = [{**entry, "label": self._names[int(entry["label"])]} for entry in entries]
        return Row({"LABEL": str(named[0]["label"]), "SCORE": named[0]["score"], "SCORES": scores}, named)


def _image(data: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError) as problem:
        raise InputError(
            f"input '{_IMAGE}' has {len(data)} bytes that are no image: {problem}; send the content of a file, such as "
            "PNG or JPEG"
        ) from None


class TokenClassification(_Asking):
    """Classes of the parts of texts, whose number differs from text to text."""

    def __call__(self, arrays: Arrays) -> List[Row]:
        texts = _texts(arrays)
        options = {"aggregation_strategy": "simple", **self._options}
        return [Row({}, entities) for entities in self._asked(texts, batch_size=len(texts), **options)]


class FillMask(_Asking):
    """The likeliest words in place of a mask."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        super().__init__(asked, settings)
        self._options = {"tokenizer_kwargs": {"truncation": True}, **self._options}
        self._top = _top(settings)

    def __call__(self, arrays: Arrays) -> List[Row]:
        texts = _texts(arrays)
        try:
            found = self._asked(texts, top_k=self._top, batch_size=len(texts), **self._options)
        except Exception as problem:
            if type(problem).__name__ != "PipelineException":
                raise
            tokenizer = self._asked.tokenizer
            if all(tokenizer.mask_token in text for text in texts):
                limit = f"the text was cut to the {tokenizer.model_max_length} tokens that the model takes"
                raise InputError(f"input '{_TEXT}' has no mask left: {limit}; send a shorter one") from None
            raise InputError(f"input '{_TEXT}' has no mask: {problem}; write {tokenizer.mask_token}") from None
        found = [found] if len(texts) == 1 else found  # the library leaves out the outer list where there is one text
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


class FeatureExtraction(_Asking):
    """One vector for each text, of those of its tokens."""

    def __init__(self, asked: Any, settings: ModelSettings, embedding: Embedding) -> None:
        super().__init__(asked, settings)
        self._embedding = embedding
        asked.tokenizer.model_max_length = embedding.max_tokens or asked.tokenizer.model_max_length

    def __call__(self, arrays: Arrays) -> List[Row]:
        """Without the library's pipeline, which returns padding as if it were text."""
        import torch

        model, texts = self._asked.model, [self._embedding.prepare(text) for text in _texts(arrays)]
        options = {"padding": len(texts) > 1, "truncation": True, **self._options}
        given = self._asked.tokenizer(texts, return_tensors="pt", **options).to(model.device)
        with torch.inference_mode():
            pooled = self._embedding.pool(model(**given)[0].float(), given["attention_mask"])
        return [Row({"EMBEDDING": vector}, vector) for vector in pooled.cpu().numpy()]


class ZeroShot(_Asking):
    """Classes that come with the request, or with the configuration."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        super().__init__(asked, settings)
        self._is_joining = asked.tokenizer.pad_token_id is not None
        text = settings.parameters.get("candidate_labels", "")
        self._fixed = tuple(label.strip() for label in text.split(",") if label.strip())
        if "candidate_labels" in settings.parameters and not self._fixed:
            raise settings.wrong_parameter("candidate_labels", "labels such as cat, dog")
        if asked.entailment_id == -1:  # the library would take the last class, whatever it means
            raise settings.error(
                "label2id in its config.json has no class whose name begins with 'entail', by whose score labels are "
                "chosen; write the names there, or use the task text-classification"
            )

    def __call__(self, arrays: Arrays) -> List[Row]:
        """One call for all rows with the same classes."""
        texts = _texts(arrays)
        rows: Dict[Tuple[str, ...], List[int]] = {}
        for number in range(len(texts)):
            rows.setdefault(self._labels(arrays, number), []).append(number)
        answers: List[Any] = [None] * len(texts)
        for labels, numbers in rows.items():
            given = [texts[number] for number in numbers]
            size = len(given) * len(labels) if self._is_joining else 1
            found = self._asked(given, candidate_labels=list(labels), batch_size=size, **self._options)
            for number, answer in zip(numbers, found):
                answers[number] = Row({"LABELS": answer["labels"], "SCORES": answer["scores"]}, answer)
        return answers

    def _labels(self, arrays: Arrays, row: int) -> Tuple[str, ...]:
        if _CANDIDATES not in arrays:
            return self._fixed
        if not arrays[_CANDIDATES][row].size:
            raise InputError(f"input '{_CANDIDATES}' is empty; send at least one label")
        return tuple(strings(_CANDIDATES, arrays[_CANDIDATES][row]).ravel())


class TextToText(_Asking):
    """Texts from texts: summaries, translations, answers."""

    def __init__(self, asked: Any, settings: ModelSettings) -> None:
        super().__init__(asked, settings)
        self._prefix = settings.parameters.get("prefix", "")

    def __call__(self, arrays: Arrays) -> List[Row]:
        import torch

        texts = [self._prefix + text for text in _texts(arrays)]
        model, tokenizer = self._asked.model, self._asked.tokenizer
        given = tokenizer(texts, return_tensors="pt", padding=len(texts) > 1, truncation=True).to(model.device)
        with torch.inference_mode():
            generated = model.generate(**given, **self._options)
        found = tokenizer.batch_decode(generated, skip_special_tokens=True)
        return [Row({"GENERATED_TEXT": text}, {"generated_text": text}) for text in found]
