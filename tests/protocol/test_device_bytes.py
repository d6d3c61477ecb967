"""Tensors in GPU memory: their owners, and what a request says of its outputs there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from naiad_stub.wire import CLIENT_MEMORY

from naiad.protocol.device_bytes import (
    DeviceBytes,
    DeviceUse,
    Exporter,
    Importer,
    WrittenBytes,
    as_data,
    device_bytes,
    on_device,
)


def tensor(size: int = 12, owner: object = None) -> DeviceBytes:
    return DeviceBytes(b"gpu", b"handle", 64, size, Exporter(), owner)


def test_a_tensor_has_the_length_of_its_bytes_and_a_number_of_its_own():
    first, second = tensor(), tensor(0)
    assert (len(first), len(second)) == (12, 0)
    assert first.serial != second.serial
    assert (first.uuid, first.handle, first.offset) == (b"gpu", b"handle", 64)


def test_a_part_of_a_tensor_keeps_its_owner():
    whole = tensor(owner=object())
    part = whole.first(5)
    assert len(part) == 5
    assert (part.uuid, part.handle, part.offset) == (whole.uuid, whole.handle, whole.offset)
    assert part.exporter is whole.exporter
    assert part.owner is whole.owner
    assert part.serial != whole.serial


def test_memory_of_clients_has_other_numbers_than_that_of_guests():
    guest, client = Exporter(), Exporter(is_client=True)
    assert guest.number & CLIENT_MEMORY == 0
    assert client.number & CLIENT_MEMORY == CLIENT_MEMORY
    assert client.number & ~CLIENT_MEMORY != guest.number


def test_each_importer_learns_once_that_memory_has_ended():
    exporter, first, second, other = Exporter(), Importer(), Importer(), Importer()
    for importer in (first, second, first):
        exporter.add_importer(importer)
    exporter.end()
    exporter.end()
    assert first.ended == second.ended == [exporter.number]
    assert other.ended == []


def test_tensors_in_gpu_memory_are_told_from_bytes():
    found = tensor()
    assert device_bytes(as_data(found)) is found
    assert device_bytes(b"bytes") is None
    assert device_bytes(memoryview(np.zeros(2, np.uint8))) is None
    assert device_bytes(as_data(WrittenBytes(3))) is None
    assert on_device([b"", as_data(found), memoryview(b"x"), as_data(found)]) == [(1, found), (3, found)]
    assert on_device([b"bytes"]) == []


@pytest.mark.parametrize("use", [DeviceUse(keeps_outputs=True), DeviceUse(kept=frozenset({"X"}))])
def test_an_output_in_gpu_memory_is_passed_on_to_those_who_take_it(use):
    data = as_data(tensor())
    assert use.settled("X", data) is data
    assert DeviceUse(kept=frozenset({"Y"})).settled("X", data) is None
    assert use.settled("X", b"bytes") == b"bytes"
    assert use.settled("X", as_data(WrittenBytes(3))) is None


@pytest.mark.parametrize(("size", "is_allowed"), [(0, True), (11, True), (12, True), (13, False)])
def test_an_output_that_its_guest_wrote_to_the_clients_place_is_found_there(size, is_allowed):
    place = tensor(owner=object())
    settled: Any = DeviceUse(places={"X": place}).settled("X", as_data(WrittenBytes(size)))
    if is_allowed:
        assert type(settled) is DeviceBytes
        assert len(settled) == size
        assert settled.owner is place.owner
    else:
        assert settled is None


def test_only_an_output_without_bytes_may_be_elsewhere_than_at_its_place():
    use = DeviceUse(places={"X": tensor()}, keeps_outputs=True)
    assert use.settled("X", b"") == b""
    assert use.settled("X", b"bytes") is None
    assert use.settled("X", as_data(tensor())) is None
    assert use.settled("Y", b"bytes") == b"bytes"
