"""Reads a forest and evaluates it as the reference's backend does (fil_backend src/tl_model.h, src/shared_state.h)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import numpy as np
import treelite
import triton_python_backend_utils as pb_utils
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import ModelSettings, error, threads_for_instance

INPUT, OUTPUT = "input__0", "output__0"

_FILENAMES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}  # the file of each `model_type`
_BINARY_CLASSIFIER, _MULTICLASS_CLASSIFIER = 0, 2  # Treelite's numbers of tasks (include/treelite/enum/task_type.h)
_WITHOUT_EFFECT = ("layout", "chunk_size", "transfer_threshold", "use_experimental_optimizations")
_RENAMED = {"algo": "layout", "threads_per_tree": "chunk_size", "output_class": "is_classifier"}


def load(settings: ModelSettings) -> Any:
    """The forest in a model's file; ModelLoadError if there is none, or Treelite cannot read it."""
    kind, path = _find(settings)
    frontend, unknown = treelite.frontend, settings.flag("xgboost_allow_unknown_field", default=False)
    readers: Mapping[str, Callable[[Path], Any]] = {
        "xgboost": frontend.load_xgboost_model_legacy_binary,
        "xgboost_json": partial(frontend.load_xgboost_model, format_choice="json", allow_unknown_field=unknown),
        "xgboost_ubj": partial(frontend.load_xgboost_model, format_choice="ubjson", allow_unknown_field=unknown),
        "lightgbm": frontend.load_lightgbm_model,
        "treelite_checkpoint": treelite.Model.deserialize,
    }
    try:
        return readers[kind](path)
    except treelite.TreeliteError as problem:
        cause = str(problem).partition("] ")[2].partition(": ")[2] or str(problem)
        raise settings.error(
            f"Treelite {treelite.__version__} cannot read '{path}' as {kind}: {cause.splitlines()[0]}"
        ) from None


def _find(settings: ModelSettings) -> Tuple[str, Path]:
    """The type of the model, and its file."""
    kind = settings.parameters.get("model_type", "")
    if kind and kind not in _FILENAMES:
        raise error(f"{kind} not recognized as a valid serialization format.")
    if not kind:
        named = settings.config.get("default_model_filename", "")
        there = [each for each, name in _FILENAMES.items() if name == named or Path(settings.directory, name).exists()]
        if not there:
            raise settings.error(
                f"'{settings.directory}' has none of the files {', '.join(_FILENAMES.values())}, and no parameter "
                "model_type says what to read"
            )
        kind = there[0]
    return kind, settings.find_file(_FILENAMES[kind])


class Forest:
    """A forest, with what the configuration wants of its answers."""

    def __init__(self, model: Any, settings: ModelSettings) -> None:
        header = model.get_header_accessor()
        targets = int(header.get_field("num_target")[0])
        if targets != 1:
            raise settings.error(f"Multi-target model not supported: this one has {targets} targets")
        self._model = model
        self._classes = int(header.get_field("num_class")[0])
        task = int(header.get_field("task_type")[0])
        _warn(settings)
        old = settings.parameters.get("output_class", "")
        is_classifier = task in (_BINARY_CLASSIFIER, _MULTICLASS_CLASSIFIER)
        self._is_classifier = settings.flag("is_classifier", default=old == "true" if old else is_classifier)
        self._gives_probabilities = settings.flag("predict_proba", default=False)
        text = settings.parameters.get("threshold", "0.5")
        try:
            self._threshold = float(text)
        except ValueError:
            raise settings.wrong_parameter("threshold", "a number") from None
        if self._gives_probabilities and task == _MULTICLASS_CLASSIFIER:
            is_vector = int(header.get_field("leaf_vector_shape")[1]) > 1
            header.set_field("postprocessor", "identity_multiclass" if is_vector else "softmax")
        sizes = {tensor.name: tensor.dims for tensor in settings.outputs}
        width = sizes.get(OUTPUT, ())[-1:]
        if self._is_classifier and not self._gives_probabilities and width in {(2,), (self._classes,)} - {(1,)}:
            raise settings.error(
                f"output {OUTPUT} has {width[0]} values a row, and the model gives the number of the class alone; for "
                'probabilities, set the parameter predict_proba to "true" in config.pbtxt, else dims to [ 1 ]'
            )
        # Two probabilities for a model that computes one: as many as the configuration has.
        is_one = self._classes == 1 and self._is_classifier
        self._is_doubled = is_one and self._gives_probabilities and width == (2,)
        if "treeshap_output" in sizes:
            raise settings.error(
                "the output treeshap_output cannot be computed by this backend; compute it in a model.py with the "
                "package shap, or leave it out"
            )
        self._threads = settings.integer("cpu_nthread", threads_for_instance())
        self._dtype = np.dtype(model.input_type)

    def interface(self) -> ModelInterface:
        """The forest's input and output, as a configuration has them."""
        width = 2 if self._is_doubled else self._classes
        if self._is_classifier and not self._gives_probabilities:
            width = 1
        return ModelInterface(
            inputs=(ModelTensor(INPUT, "TYPE_FP32", (-1, int(self._model.num_feature))),),
            outputs=(ModelTensor(OUTPUT, "TYPE_FP32", (-1, width)),),
        )

    def run(self, arrays: Arrays, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The output: a value, a class or probabilities for each row."""
        rows = np.ascontiguousarray(arrays[INPUT], self._dtype)
        try:
            found = treelite.gtil.predict(self._model, rows, nthread=self._threads or -1)
        except treelite.TreeliteError as problem:
            raise pb_utils.TritonModelException(str(problem)) from None
        with np.errstate(over="ignore"):
            scores = found.reshape(len(rows), -1).astype(np.float32, copy=False)
        if not np.array_equal(np.isinf(scores).ravel(), np.isinf(found).ravel()):
            raise ValueError(f"output '{OUTPUT}' has a value that TYPE_FP32 cannot hold; scale the target of the model")
        if self._is_doubled:
            scores = np.concatenate([1 - scores, scores], axis=1)
        elif self._is_classifier and not self._gives_probabilities:
            scores = self._decide(scores)
        return dict.fromkeys(wanted, scores)

    def _decide(self, scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The class of each row, as a number."""
        if self._classes == 1:
            return (scores > self._threshold).astype(np.float32)
        if scores.shape[1] == 1:  # Treelite has already taken the largest
            return scores
        return scores.argmax(axis=1, keepdims=True).astype(np.float32)


def _warn(settings: ModelSettings) -> None:
    for old, new in _RENAMED.items():
        if settings.parameters.get(old):
            pb_utils.Logger.log_warn(
                f"the parameter {old} of model '{settings.name}' is that of an older release; use {new} in its place"
            )
    unused = [key for key in _WITHOUT_EFFECT if settings.parameters.get(key)]
    if unused:
        pb_utils.Logger.log_warn(
            f"parameters of model '{settings.name}' that concern computation on GPUs alone have no effect: "
            f"{', '.join(unused)}"
        )
