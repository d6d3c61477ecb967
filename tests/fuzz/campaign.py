"""The campaigns: which inputs each target gets, and its share. Used by the tests, with few inputs, and by `__main__`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NamedTuple

from fuzz import config_target, grpc_target, http2_target, http_target, samples
from fuzz.mutations import messages, mutated, mutated_documents
from google.protobuf import json_format, text_format
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from naiad.config.model.model_config_pb2 import ModelConfig

_BATCH = 2000
"""Inputs of one run of Hypothesis. It remembers all examples of a run, and becomes slower with each."""


class Campaign(NamedTuple):
    """One kind of inputs for one target.

    Attributes:
        name: The target and the kind of inputs.
        share: The campaign's fraction of all inputs.
        inputs: A strategy for the arguments of `attempt`.
        attempt: Tries one input; raises if the target misbehaves.
        target: The target, which counts its `outcomes`.
    """

    name: str
    share: float
    inputs: st.SearchStrategy[tuple[Any, ...]]
    attempt: Callable[..., None]
    target: Any

    def run(self, count: int, seed_number: int) -> int:
        """Try about *count* inputs, reproducible by *seed_number*; return how many were tried."""
        tried = 0
        while tried < count:
            made = self._batch(min(count - tried, _BATCH), seed_number)
            tried += made
            seed_number += 1
            if made == 0:
                break
        return tried

    def _batch(self, count: int, seed_number: int) -> int:
        tried = 0

        @seed(seed_number)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            print_blob=False,
        )
        @given(self.inputs)
        def batch(arguments: tuple[Any, ...]) -> None:
            nonlocal tried
            tried += 1
            self.attempt(*arguments)

        batch()
        return tried


@contextmanager
def prepared(folder: Path) -> Iterator[list[Campaign]]:
    """All campaigns, with the targets and the shared memory that they need."""
    with ExitStack() as stack:
        region = SharedMemory(samples.KEY, create=True, size=4096)
        stack.callback(region.unlink)
        stack.callback(region.close)
        http, grpc, http2 = http_target.HttpTarget(), grpc_target.GrpcTarget(), http2_target.Http2Target()
        for target in (http, grpc, http2):
            stack.callback(target.close)
        config = config_target.ConfigTarget(folder)
        yield [*_of_http(http), *_of_grpc(grpc), _of_http2(http2), *_of_configurations(config)]


def server_campaigns(target: Any) -> list[Campaign]:
    """The campaigns for a real server."""
    return [*_of_http(target), *_of_grpc(target)]


def _of_http(target: Any) -> list[Campaign]:
    cuts = st.lists(st.integers(0, 1 << 16), max_size=3)
    requests = st.lists(mutated(st.sampled_from(samples.REQUESTS)), min_size=1, max_size=3).map(b"".join)
    bodies = st.sampled_from(samples.DOCUMENTS).flatmap(
        lambda sample: st.tuples(st.just(sample[0]), mutated_documents(st.just(sample[1])))
    )
    broken = st.sampled_from([(line, json.dumps(body).encode()) for line, body in samples.DOCUMENTS]).flatmap(
        lambda sample: st.tuples(st.just(sample[0]), mutated(st.just(sample[1])))
    )
    return [
        Campaign("HTTP: requests with changed bytes, some behind each other, in pieces", 0.2, st.tuples(requests, cuts), target.try_bytes, target),
        Campaign("HTTP: bodies with changed values", 0.2, bodies, target.try_body, target),
        Campaign("HTTP: bodies with changed bytes", 0.1, broken, target.try_body, target),
    ]  # fmt: skip


def _of_grpc(target: Any) -> list[Campaign]:
    found = grpc_target.samples()
    changed = st.sampled_from(found).flatmap(lambda sample: st.tuples(st.just(sample[0]), mutated(st.just(sample[1]))))
    unary = [name for name in grpc_target.METHODS if name != "ModelStreamInfer"]
    made = st.sampled_from(unary).flatmap(lambda name: st.tuples(st.just(name), _made(name)))
    merged = st.sampled_from(found).flatmap(
        lambda sample: st.tuples(st.just(sample[0]), _made(sample[0]).map(lambda more: sample[1] + more))
    )
    infers = [data for name, data in found if name == "ModelInfer"]
    streamed = st.one_of(mutated(st.sampled_from(infers)), _made("ModelInfer"))
    streams = st.tuples(st.lists(streamed, max_size=4))
    return [
        Campaign("gRPC: messages with changed bytes", 0.1, changed, target.try_call, target),
        Campaign("gRPC: messages made up", 0.05, made, target.try_call, target),
        # To protobuf, two concatenated messages are one with the fields of both.
        Campaign("gRPC: good messages with more behind them", 0.1, merged, target.try_call, target),
        Campaign("gRPC: streams of either", 0.05, streams, target.try_stream, target),
    ]


def _of_http2(target: Any) -> Campaign:
    begun = [
        st.builds(http2_target.head_of, st.just(number), st.sampled_from(http2_target.METHODS), is_cut=st.booleans())
        for number in (1, 3, 5, 7)
    ]
    content = [st.sampled_from(http2_target.contents_of(number)) for number in (1, 3, 5, 7)]
    whole = st.sampled_from(http2_target.OF_CONNECTION)
    # Streams begin before their content, and most inputs are unchanged: otherwise few get past the first frame.
    turns = [
        st.tuples(begun[number], st.lists(st.one_of(*content[: number + 1], whole), max_size=4)) for number in range(4)
    ]
    good = st.tuples(*turns).map(lambda all_: [frame for first, rest in all_ for frame in (first, *rest)])
    spoilt = good.flatmap(
        lambda sent: st.tuples(*(mutated(st.just(frame)) for frame in sent[-4:])).map(lambda end: [*sent[:-4], *end])
    )
    mixed = st.lists(st.one_of(*begun, *content, whole), max_size=12)
    cuts = st.lists(st.integers(0, 1 << 16), max_size=4)
    sent = st.one_of(good, good, spoilt, mixed)
    return Campaign(
        "HTTP/2: frames in any order, some with changed bytes", 0.05, st.tuples(sent, cuts), target.try_frames, target
    )


def _made(method: str) -> st.SearchStrategy[bytes]:
    return messages(grpc_target.METHODS[method].input_type).map(lambda message: message.SerializeToString())


def _of_configurations(target: Any) -> list[Campaign]:
    strict = st.booleans()
    texts = mutated(st.sampled_from(config_target.samples()))
    message = messages(ModelConfig.DESCRIPTOR)

    def attempt(text: bytes, as_json: bytes, *, is_strict: bool) -> None:
        target.try_text(text, strict=is_strict)
        target.try_json(as_json, strict=is_strict)

    forms = message.map(lambda made: (_text(made), json_format.MessageToJson(made).encode()))
    return [
        Campaign("configurations with changed bytes", 0.1, st.tuples(texts, strict), lambda text, flag: target.try_text(text, strict=flag), target),
        Campaign("configurations made up, as text and JSON", 0.05, st.tuples(forms, strict), lambda pair, flag: attempt(*pair, is_strict=flag), target),
    ]  # fmt: skip


def _text(message: Any) -> bytes:
    return text_format.MessageToString(message).encode()
