"""The campaign's own instrument: it must see a server that is held up, and one that is not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.watching import attacked_server, harmless, watched
from support.server import ServerProcess

_TOY = """
import asyncio, sys, time
from pathlib import Path

sys.path.insert(0, {heartbeat!r})
from heartbeat import Heartbeat, report_file


turn = asyncio.Lock()


async def serve(reader, writer):
    while head := await reader.read(4096):
        if head.startswith(b"GET /burn"):
            {work}
        async with turn:
            pass
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


async def main():
    Heartbeat(asyncio.get_running_loop(), report_file(Path(sys.argv[1])))
    port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--http-port="))
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    await server.serve_forever()

asyncio.run(main())
"""


@contextlib.contextmanager
def toy_server(work: Path, at_burn: str) -> Iterator[ServerProcess]:
    """A server that answers every request, and one for `/burn` after it has done *at_burn*."""
    script = work / "toy.py"
    script.write_text(_TOY.format(heartbeat=str(Path(__file__).parent), work=at_burn))
    toy = attacked_server(None, work=work, script=script)
    toy.start()
    try:
        toy.wait_health("ready")
        yield toy
    finally:
        toy.kill()


def test_server_without_attack_serves_others(server: ServerProcess) -> None:
    with harmless(server, 32 << 20) as seen:
        for _ in range(50):
            server.get("/v2")
    assert seen.answers > 0
    assert seen.longest_ns > 0


def test_a_delayed_server_is_detected(tmp_path: Path) -> None:
    with toy_server(tmp_path, "burn(0.3)") as held_up:
        with watched(held_up) as seen:
            held_up.get("/burn")
        with pytest.raises(AssertionError, match="was held up for"):
            seen.assert_others_served()


def test_many_short_turns_delay_no_request(tmp_path: Path) -> None:
    work = "[(burn(0.01), await asyncio.sleep(0.01)) for _ in range(30)]"
    with toy_server(tmp_path, work) as fair, harmless(fair):
        fair.get("/burn")


def test_a_server_that_starves_others_between_turns_is_detected(tmp_path: Path) -> None:
    work = "async with turn: [(burn(0.01), await asyncio.sleep(0)) for _ in range(150)]"
    with toy_server(tmp_path, work) as starving:
        with watched(starving) as seen:
            starving.get("/burn")
        with pytest.raises(AssertionError, match="without an answer to a probe"):
            seen.assert_others_served()


def test_memory_that_grew_for_a_moment_is_detected(tmp_path: Path) -> None:
    with toy_server(tmp_path, "bytearray(100 << 20)") as grows:
        with watched(grows) as seen:
            grows.get("/burn")
        with pytest.raises(AssertionError, match="memory grew by"):
            seen.assert_memory(64 << 20)
