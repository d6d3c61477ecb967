"""Our messages are, byte for byte on the wire, those of tritonclient."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import service_pb2 as theirs

from naiad.frontends import grpc, http2
from naiad.frontends.kserve_grpc import service_pb2 as ours

HEALTH = {"HealthCheckRequest", "HealthCheckResponse"}


def local(full_name: str) -> str:
    return full_name.removeprefix("inference.").removeprefix("naiad.grpc.").removeprefix("naiad.config.")


def describe_field(field: FieldDescriptor) -> tuple:
    referred = field.message_type or field.enum_type
    return (
        field.name,
        field.number,
        field.type,
        # `label` is deprecated since `is_repeated` exists (protobuf 6.31).
        field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED,
        local(referred.full_name) if referred else None,
        field.containing_oneof.name if field.containing_oneof else None,
    )


def describe(message: Descriptor) -> dict:
    return {
        "fields": sorted(map(describe_field, message.fields)),
        "nested": {nested.name: describe(nested) for nested in message.nested_types},
        "enums": {e.name: [(v.name, v.number) for v in e.values] for e in message.enum_types},
        "is_map_entry": message.GetOptions().map_entry,
    }


@pytest.mark.parametrize("name", sorted(theirs.DESCRIPTOR.message_types_by_name))
def test_message_has_the_fields_numbers_and_types_of_tritonclients(name):
    expected = describe(theirs.DESCRIPTOR.message_types_by_name[name])
    assert describe(ours.DESCRIPTOR.message_types_by_name[name]) == expected


def test_all_messages_are_those_of_tritonclient_and_of_the_health_checks():
    assert set(ours.DESCRIPTOR.message_types_by_name) == set(theirs.DESCRIPTOR.message_types_by_name) | HEALTH


def test_service_has_the_methods_of_tritonclients():
    def methods(file):
        service = file.services_by_name["GRPCInferenceService"]
        return {
            m.name: (
                local(m.input_type.full_name),
                local(m.output_type.full_name),
                m.client_streaming,
                m.server_streaming,
            )
            for m in service.methods
        }

    assert methods(ours.DESCRIPTOR) == methods(theirs.DESCRIPTOR)


def test_health_messages_are_those_of_the_grpc_health_checking_protocol():
    # https://github.com/grpc/grpc/blob/master/doc/health-checking.md
    assert ours.HealthCheckRequest(service="x").SerializeToString() == b"\x0a\x01x"
    assert ours.HealthCheckResponse(status=ours.HealthCheckResponse.SERVING).SerializeToString() == b"\x08\x01"
    assert ours.HealthCheckResponse(status=ours.HealthCheckResponse.NOT_SERVING).SerializeToString() == b"\x08\x02"


def imported_by(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    return found


def test_http2_imports_nothing_else_of_the_host():
    imported = {name for name in imported_by(Path(http2.__file__).parent) if name.startswith("naiad.")}
    assert imported
    # What HTTP/1.1 and HTTP/2 share; these modules import nothing else of the host.
    shared = {
        "naiad.frontends.open_connections",
        "naiad.frontends.refusals",
        "naiad.frontends.request_budget",
        "naiad.frontends.unread_responses",
        "naiad.frontends.unread_bytes",
        "naiad.core.turns",
    }
    assert {name for name in imported if not name.startswith("naiad.frontends.http2")} <= shared


def test_the_transport_of_grpc_imports_no_service():
    imported = imported_by(Path(grpc.__file__).parent)
    assert "naiad.frontends.http2.stream" in imported
    assert {name for name in imported if name.startswith(("naiad.frontends.kserve", "naiad.engine"))} == set()


@pytest.mark.parametrize(
    "module", ["field_blocks", "flow_control", "frame_reader", "frames", "request_head", "send_buffer", "settings"]
)
def test_the_pure_parts_of_http2_import_no_event_loop(module):
    source = (Path(http2.__file__).parent / f"{module}.py").read_text()
    assert "asyncio" not in source
