"""Models of a server in this process."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable, Mapping
from typing import Any, overload

import orjson

from naiad.engine.engine import Engine
from naiad.frontends.kserve_http.documents import metadata_document, statistics_document
from naiad.inprocess.enums import ModelBatchFlag, ModelTxnPropertyFlag
from naiad.inprocess.errors import InvalidArgumentError, UnsupportedError, translated
from naiad.inprocess.loop import LoopThread
from naiad.inprocess.request import InferenceRequest
from naiad.inprocess.response import AsyncResponseIterator, ResponseIterator, Submission
from naiad.protocol.model_names import LATEST

__all__ = ["Model", "ModelDictionary", "plain"]


class Model:
    """One model, or one version of it; got from a server, which looks for it when it is used.

    Attributes:
        name: Its name.
        version: The version, -1 for the one the model's policy names.
        state: Its state in the repository's index, where it came from there.
        reason: Why it is in that state, if there is a reason.
    """

    def __init__(
        self,
        engine: Engine,
        loop: LoopThread,
        name: str,
        version: int = LATEST,
        state: str | None = None,
        reason: str | None = None,
        *,
        hold: object = None,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._hold = hold  # the server runs for as long as somebody refers to that
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def __repr__(self) -> str:
        return repr({"name": self.name, "version": self.version, "state": self.state})

    # -- requests -------------------------------------------------------------------------------------------------

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """A request to this model; for the arguments see `InferenceRequest`."""
        kwargs.pop("model", None)
        return InferenceRequest(model=self, **kwargs)

    def infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,  # noqa: FBT001, FBT002 - the package's signature
        **kwargs: Any,
    ) -> ResponseIterator:
        """Ask the model; the responses come from the iterator as they are made.

        Args:
            inference_request: The request; without one it is made of *kwargs* as by `create_request`.
            raise_on_error: Whether the iterator raises a response's error, or returns it in the response.
            kwargs: Of the request.

        Raises:
            TritonError: If the request is refused: there is no such model, or it takes no such inputs.
        """
        request = self._request(inference_request, kwargs)
        copies = request.response_queue
        if copies is not None and not isinstance(copies, queue.SimpleQueue):
            raise InvalidArgumentError("queue.SimpleQueue must be used for response iterator")
        submission = self._submission(request)
        responses = ResponseIterator(submission, copies, raise_on_error=raise_on_error)
        self._submit(submission, request)
        return responses

    def async_infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,  # noqa: FBT001, FBT002 - the package's signature
        **kwargs: Any,
    ) -> AsyncResponseIterator:
        """As `infer`, for `async for` on the running event loop."""
        request = self._request(inference_request, kwargs)
        copies = request.response_queue
        if copies is not None and not isinstance(copies, asyncio.Queue):
            raise InvalidArgumentError("asyncio.Queue must be used for async response iterator")
        submission = self._submission(request)
        responses = AsyncResponseIterator(submission, copies, raise_on_error=raise_on_error)
        self._submit(submission, request)
        return responses

    def _request(self, given: InferenceRequest | None, arguments: dict[str, Any]) -> InferenceRequest:
        return self.create_request(**arguments) if given is None else given

    def _submission(self, request: InferenceRequest) -> Submission:
        return Submission(self._engine, self._loop.post, request.model, request.request_id)

    def _submit(self, submission: Submission, request: InferenceRequest) -> None:
        with translated():
            self._loop.call(submission.submit, request._for_engine())  # noqa: SLF001

    def _answering(self, name: str, version: int) -> Model:
        """The model of that name and version on the same server."""
        return Model(self._engine, self._loop, name, version, hold=self._hold)

    # -- questions ------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether it takes requests.

        Raises:
            NotFoundError: If there is no such model.
        """
        with translated():
            return self._loop.run(self._engine.check_ready(self.name, self.version))

    def metadata(self) -> dict[str, Any]:
        """Its inputs and outputs, as over HTTP."""
        with translated():
            return plain(metadata_document(self._loop.call(self._engine.model_metadata, self.name, self.version)))

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """Its effective configuration.

        Raises:
            UnsupportedError: If *config_version* is not 1: there is no other form.
        """
        if config_version != 1:
            raise UnsupportedError(
                f"model configuration version {config_version} not supported, supported versions are: 1"
            )
        with translated():
            return plain(self._loop.call(self._engine.model_config, self.name, self.version))

    def statistics(self) -> dict[str, Any]:
        """Its statistics, as over HTTP."""
        with translated():
            return plain(statistics_document(self._loop.call(self._engine.statistics, self.name, self.version)))

    def batch_properties(self) -> ModelBatchFlag:
        """Whether the first dimension of its tensors is a batch."""
        return ModelBatchFlag.FIRST_DIM if self.config()["max_batch_size"] > 0 else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Whether it may give any number of responses to a request."""
        with translated():
            is_decoupled = self._loop.call(self._engine.is_decoupled, self.name, self.version)
        return ModelTxnPropertyFlag.DECOUPLED if is_decoupled else ModelTxnPropertyFlag.ONE_TO_ONE


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by name and version, and by name alone."""

    def __init__(self, models: Iterable[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})

    @overload
    def __getitem__(self, key: tuple[str, int]) -> Model: ...
    @overload
    def __getitem__(self, key: str) -> Model: ...
    def __getitem__(self, key: tuple[str, int] | str) -> Model:
        if isinstance(key, str):
            for model in self.values():
                if model.name == key:
                    return model._answering(key, LATEST)  # noqa: SLF001
        elif key in self:
            return super().__getitem__(key)
        raise KeyError(f"Unknown Model: {key}")


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document whose sequences are lists: callers compare and change what they are given."""
    copy: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return copy
