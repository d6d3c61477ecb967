"""Closing listening sockets, also where the process has no file descriptor left."""

import asyncio
import resource

from naiad.frontends.listening import close_listening


async def test_sockets_are_closed_without_a_file_descriptor_left():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = min(each.fileno() for each in server.sockets)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(lowest, 3), hard))
    try:
        await close_listening(server, asyncio.Protocol, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not server.is_serving()
