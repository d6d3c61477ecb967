"""Models of a server in this process."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import orjson

from naiad.engine.engine import Engine
from naiad.protocol.documents import metadata_document, statistics_document
from naiad.protocol.model_names import LATEST
from naiad_embedded.inprocess.enums import ModelBatchFlag, ModelTxnPropertyFlag
from naiad_embedded.inprocess.errors import InvalidArgumentError, UnsupportedError
from naiad_embedded.inprocess.loop import LoopThread
from naiad_embedded.inprocess.request import InferenceRequest, RequestFields
from naiad_embedded.inprocess.response import AsyncResponseIterator, ReadRequest, ResponseIterator

if TYPE_CHECKING:
    from typing_extensions import Unpack  # `typing` has it from Python 3.11 on; type checkers always know this module


_T = TypeVar("_T")


class ServerBinding(NamedTuple):
    """The running server of a model."""

    engine: Engine
    loop: LoopThread
    keep_alive: object


class Model:
    """A model or one version of it; the server looks it up when it is used.

    Attributes:
        name: Name of the model.
        version: The version, -1 for the one that the model's version policy selects.
        state: State in the repository index; None unless `Server.models` returned the model.
        reason: Reason of the state, if there is one.
    """

    def __init__(
        self,
        server: ServerBinding,
        name: str,
        version: int = LATEST,
        state: str | None = None,
        reason: str | None = None,
    ) -> None:
        # The one private attribute, with the package's name: programs remove it from `__dict__`, and write the rest as
        # JSON.
        self._server = server
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def __repr__(self) -> str:
        return repr({"name": self.name, "version": self.version, "state": self.state})

    # -- requests -------------------------------------------------------------------------------------------------

    def create_request(self, **kwargs: Unpack[RequestFields]) -> InferenceRequest:
        """A request to this model; *kwargs* are the fields of `InferenceRequest`."""
        fields: dict[str, Any] = {**kwargs, "model": self}  # programs for the package may name it, too
        return InferenceRequest(**fields)

    def infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,  # noqa: FBT001, FBT002 - the package's signature
        **kwargs: Unpack[RequestFields],
    ) -> ResponseIterator:
        """Submit a request; returns an iterator of the responses.

        Args:
            inference_request: The request; None for a request with the fields *kwargs*.
            raise_on_error: Whether the iterator raises the error of a response; otherwise the response has it.
            kwargs: Fields of `InferenceRequest`.

        Raises:
            TritonError: If the request is rejected: the model is not available, or an input does not match.
        """
        request = self._request(inference_request, kwargs)
        copies = request.response_queue
        if copies is not None and not isinstance(copies, queue.SimpleQueue):
            raise InvalidArgumentError("queue.SimpleQueue must be used for response iterator")
        submitted = self._prepare(request)
        responses = ResponseIterator(submitted, copies, raise_on_error=raise_on_error)
        self._submit(submitted, request)
        return responses

    def async_infer(
        self,
        inference_request: InferenceRequest | None = None,
        raise_on_error: bool = True,  # noqa: FBT001, FBT002 - the package's signature
        **kwargs: Unpack[RequestFields],
    ) -> AsyncResponseIterator:
        """As `infer`, with an iterator for `async for` on the running event loop."""
        request = self._request(inference_request, kwargs)
        copies = request.response_queue
        if copies is not None and not isinstance(copies, asyncio.Queue):
            raise InvalidArgumentError("asyncio.Queue must be used for async response iterator")
        submitted = self._prepare(request)
        responses = AsyncResponseIterator(submitted, copies, raise_on_error=raise_on_error)
        self._submit(submitted, request)
        return responses

    def _request(self, given: InferenceRequest | None, arguments: RequestFields) -> InferenceRequest:
        return self.create_request(**arguments) if given is None else given

    def _prepare(self, request: InferenceRequest) -> ReadRequest:
        return ReadRequest(self._server.engine, self._server.loop.post, request.model, request.request_id)

    def _submit(self, submitted: ReadRequest, request: InferenceRequest) -> None:
        # `call` waits until the engine has accepted or rejected the request, so a rejection raises here.
        self._server.loop.call(submitted.submit, request._for_engine())  # noqa: SLF001 - of this package

    def _on_same_server(self, name: str, version: int) -> Model:
        return Model(self._server, name, version)

    # -- readiness, metadata, statistics --------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether the model accepts requests.

        Raises:
            NotFoundError: If the model is not known.
        """
        return self._server.loop.run(self._server.engine.check_ready(self.name, self.version))

    def metadata(self) -> dict[str, Any]:
        """The model's inputs and outputs, as in the response of the HTTP API."""
        return as_plain_dict(metadata_document(self._ask(self._server.engine.model_metadata)))

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The model's effective configuration.

        Raises:
            UnsupportedError: If *config_version* is not 1.
        """
        if config_version != 1:
            raise UnsupportedError(
                f"model configuration version {config_version} not supported, supported versions are: 1"
            )
        return as_plain_dict(self._ask(self._server.engine.model_config))

    def statistics(self) -> dict[str, Any]:
        """The model's statistics, as in the response of the HTTP API."""
        return as_plain_dict(statistics_document(self._ask(self._server.engine.statistics)))

    def batch_properties(self) -> ModelBatchFlag:
        """Whether the first dimension of the model's tensors is the batch dimension."""
        return ModelBatchFlag.FIRST_DIM if self.config()["max_batch_size"] > 0 else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Whether the model is decoupled: it may send any number of responses to a request."""
        is_decoupled = self._ask(self._server.engine.is_decoupled)
        return ModelTxnPropertyFlag.DECOUPLED if is_decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    def _ask(self, question: Callable[[str, int], _T]) -> _T:
        return self._server.loop.call(question, self.name, self.version)


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by `(name, version)`, and by name; a name alone selects the version of the model's policy."""

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
                    return model._on_same_server(key, LATEST)  # noqa: SLF001 - this module's own class
        elif key in self:
            return super().__getitem__(key)
        raise KeyError(f"Unknown Model: {key}")


def as_plain_dict(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document, as `json.loads` would return it: callers may change it, and its sequences are lists."""
    copy: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return copy
