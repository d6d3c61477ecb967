"""Regression tests for what fuzzing has found."""

from __future__ import annotations

import numpy as np
import pytest

from naiad.config.model.model_config import freeze
from naiad.config.model.text import parse_text
from naiad.core.errors import ConfigError, InvalidRequestError
from naiad.engine.scheduling.factory import scheduler_for
from naiad.engine.serving.warmup import read_samples
from naiad.frontends.kserve_http.json_tensors import to_bytes
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.read import prepare_config
from naiad.protocol.datatypes import Datatype

IO = 'input { name: "I" data_type: TYPE_FP32 dims: -1 } output { name: "O" data_type: TYPE_FP32 dims: -1 }'


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        message = parse_text(f'name: "m" backend: "python" {IO} {text}', "config.pbtxt")
        files = ModelFiles(name="m", repository=tmp_path, directory=tmp_path)
        return freeze(prepare_config(message, files, strict=True))

    return read_text


def test_instances_by_the_thousand_million_are_refused_before_they_are_named(read):
    """Their names filled the memory of the host: ten gigabytes of them."""
    with pytest.raises(ConfigError, match="ask for 2147483650 instances, each a process; at most 4096 can be served"):
        read("instance_group [ { kind: KIND_CPU count: 2147483647 }, { kind: KIND_CPU count: 3 } ]")


def test_warm_up_with_more_bytes_than_any_machine_has_is_refused(read, tmp_path):
    config = read(
        'model_warmup { name: "w" batch_size: 1 '
        'inputs { key: "I" value { data_type: TYPE_FP32 dims: 9223372036854775807 random_data: true } } }'
    )
    with pytest.raises(
        ConfigError, match=r"cannot make warmup input 'I': shape \[9223372036854775807\] exceeds 4294967296 bytes"
    ):
        read_samples(config, tmp_path)


def test_datatype_that_no_tensor_has_is_refused_in_warm_up(read, tmp_path):
    """A number without a name raised ValueError."""
    config = read("")
    sample = config.message.model_warmup.add(name="w", batch_size=1)
    sample.inputs["I"].data_type = 77
    sample.inputs["I"].zero_data = True
    with pytest.raises(
        InvalidRequestError, match="inference input 'I' data-type is '<invalid>', but model 'm' expects"
    ):
        read_samples(config, tmp_path)


def test_numbers_too_large_for_their_datatype_become_infinite_without_a_warning():
    """numpy printed a warning on the server's stderr."""
    data = to_bytes("I", Datatype.FP32, (2,), [1e300, -3e38])
    assert np.frombuffer(data, "<f4").tolist() == [np.inf, np.float32(-3e38)]


@pytest.mark.parametrize("strategy", ["oldest { max_candidate_sequences: 2147483647 }", "direct { }"])
def test_places_for_sequences_are_bounded(read, strategy):
    """Each instance allocated an object for each place."""
    config = read(f"max_batch_size: 2147483647 sequence_batching {{ {strategy} }}")
    scheduler = scheduler_for(config)
    scheduler.add_instance("an instance")
    assert len(scheduler._instances["an instance"].slots) == 65536
