"""The server with faults: packing a message raises for requests with certain ids. Run as the command `tritonserver`.

    unpackable          EXECUTE, to the guest; also the check of single requests of a batch
    unpackable result   RESULT, to the guest that made the call
    unpackable message   the message of one process with the request, to the process with the model
    unpackable reply    the message of that with the response
    unpackable body     the body of the response to `generate`

Also: the REPLY to a query about a model `unpackable`. Everything else is the server as it is.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

CAUSE = "a fault of the test"
FRAME_ID = b"unpackable message"


def install() -> None:
    """Install the faults in this process of the server."""
    from naiad.frontends.kserve_http import generate_response
    from naiad.guests import exchange, result_queue, worker
    from naiad.server.processes import request_link, request_session

    def raise_for(module: Any, name: str, is_faulty: Any) -> None:
        packed = getattr(module, name)

        def wrapper(*arguments: Any, **named: Any) -> Any:
            if is_faulty(*arguments, **named):
                raise struct.error(CAUSE)
            return packed(*arguments, **named)

        setattr(module, name, wrapper)

    raise_for(exchange, "_pack_request", lambda key, request, *_: request.request_id == "unpackable")
    raise_for(worker, "write_forwarded", lambda number, key, request_id, *_: request_id == b"unpackable")
    raise_for(
        result_queue,
        "write_result",
        lambda number, response, *_: response is not None and response.request_id == "unpackable result",
    )
    raise_for(worker, "pack", lambda message: "'unpackable'" in getattr(message, "text", ""))
    raise_for(generate_response, "_document", lambda response: response.request_id == "unpackable body")
    request_link.SHORT_REQUEST_FRAME = _FaultyFrame(request_link.SHORT_REQUEST_FRAME)  # type: ignore[assignment] # as long as it packs

    def is_unpackable(response: Any) -> bool:
        return response is not None and response.error is None and response.request_id == "unpackable reply"

    respond, respond_forwarded = (
        request_session.RequestSession.respond,
        request_session.RequestSession.respond_forwarded,
    )

    def faulty(self: Any, number: int, response: Any, final: bool) -> None:
        if is_unpackable(response):
            raise struct.error(CAUSE)
        respond(self, number, response, final)

    def faulty_forwarded(self: Any, number: int, model: Any, layout: Any, outputs: bytes) -> None:
        if b"unpackable reply" in outputs:
            raise struct.error(CAUSE)
        respond_forwarded(self, number, model, layout, outputs)

    request_session.RequestSession.respond = faulty  # type: ignore[method-assign] # the fault
    request_session.RequestSession.respond_forwarded = faulty_forwarded  # type: ignore[method-assign] # the fault


def install_in_others() -> None:
    """Have the other processes of the server install the faults, too."""
    from naiad.server.processes import spawned

    start = spawned.start_own_code

    def start_faulty(_function: str, *arguments: Any, **keywords: Any) -> Any:
        return start(f"{Path(__file__).stem}:serve_faulty", *arguments, **keywords)

    sys.path.insert(0, str(Path(__file__).parent))  # which the process gets
    spawned.start_own_code = start_faulty


def serve_faulty(descriptor: int) -> None:
    """What another process runs in place of its own function."""
    install()
    from naiad.server.further_process import main

    main(descriptor)


class _FaultyFrame:
    def __init__(self, packer: struct.Struct) -> None:
        self._packer = packer
        self.size = packer.size

    def pack(self, *fields: int) -> bytes:
        if len(FRAME_ID) in fields[-2:-1]:
            raise struct.error(CAUSE)
        return self._packer.pack(*fields)


if __name__ == "__main__":
    install()
    install_in_others()
    from naiad.cli.main import main_tritonserver

    sys.exit(main_tritonserver())
