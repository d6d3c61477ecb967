"""An ASGI application with the paths of vLLM's server: it says what it was asked, or what the request tells it to."""

import json
from types import SimpleNamespace


class Application:
    def __init__(self, args, supported_tasks):
        self.args = args
        self.tasks = supported_tasks
        self.state = SimpleNamespace()
        self.begun = self.left = 0

    async def __call__(self, scope, receive, send):
        message = await receive()
        assert (scope["type"], scope["method"], message["more_body"]) == ("http", "POST", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        given = {} if headers["content-type"] != "application/json" else json.loads(message["body"])
        if given.get("fails"):
            raise ValueError("as it was told")
        if given.get("waits"):
            self.begun += 1
            assert (await receive())["type"] == "http.disconnect"
            self.left += 1
            return
        kind = b"text/event-stream; charset=utf-8" if given.get("stream") else b"application/json"
        lines = [(b"content-type", kind), (b"access-control-allow-origin", b"*")]
        await send({"type": "http.response.start", "status": given.get("status", 200), "headers": lines})
        told = {
            "path": scope["path"],
            "headers": headers,
            "body": message["body"].decode(),
            "tasks": self.tasks,
            "name": self.args.served_model_name,
            "has_engine": self.state.engine is not None,
            "begun": self.begun,
            "left": self.left,
        }
        text = json.dumps(told).encode()
        parts = [b"data: 1\n\n", b"data: 2\n\n"] if given.get("stream") else [text[:9], text[9:]]
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def build_app(args, supported_tasks=None):
    return Application(args, supported_tasks)


async def init_app_state(engine_client, state, args):
    state.engine = engine_client
