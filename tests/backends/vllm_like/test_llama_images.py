"""Images in conversations with a GGUF file, by llama.cpp's own encoder of images."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from support.server import ServerProcess, free_ports

from .asking import refusal
from .conftest import add_model

if TYPE_CHECKING:
    from openai import OpenAI

MODELS = ("llama",)
RED, BLUE = (255, 0, 0), (0, 0, 255)
SCHEMA: Any = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}


def png(colour: tuple[int, int, int]) -> str:
    """An image of one colour, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(colour) * 28 for _ in range(28))
    header = struct.pack(">IIBBBBB", 28, 28, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + content).decode()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    """A server with a model that sees."""
    folder = tmp_path_factory.mktemp("images")
    options = {"model": "tiny.gguf", "max_model_len": 512, "max_num_seqs": 2, "engine_options": {"mmproj": "eyes.gguf"}}
    version = add_model(folder / "models", engines, "seeing", options)
    writer = Path(__file__).parent / "tiny_mmproj.py"
    subprocess.run([engines / "bin" / "python", writer, version / "eyes.gguf"], check=True, timeout=60)
    port = free_ports(1)[0]
    with ServerProcess(folder / "models", f"--openai-port={port}", work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def eyes(seeing: ServerProcess) -> Iterator[OpenAI]:
    base = f"http://127.0.0.1:{seeing.openai_port}/v1"  # type: ignore[attr-defined]
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def content(url: str) -> Any:
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": url}}],
        }
    ]


def by_chat(client: OpenAI, colour: tuple[int, int, int], **options: Any) -> str:
    url = f"data:image/png;base64,{png(colour)}"
    given = {"max_tokens": 12, "temperature": 0, **options}
    return (
        client.chat.completions.create(model="seeing", messages=content(url), **given).choices[0].message.content or ""
    )


def by_response(client: OpenAI, colour: tuple[int, int, int]) -> str:
    parts: Any = [
        {"type": "input_text", "text": "hello"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{png(colour)}"},
    ]
    asked: Any = [{"role": "user", "content": parts}]
    return client.responses.create(model="seeing", input=asked, max_output_tokens=12, temperature=0).output_text


def by_message(client: OpenAI, colour: tuple[int, int, int]) -> str:
    source = {"type": "base64", "media_type": "image/png", "data": png(colour)}
    parts: Any = [{"type": "text", "text": "hello"}, {"type": "image", "source": source}]
    base = str(client.base_url).removesuffix("v1/")
    with contextlib.closing(anthropic.Anthropic(base_url=base, api_key="any", max_retries=0, timeout=60)) as other:
        asked: Any = [{"role": "user", "content": parts}]
        answer = other.messages.create(model="seeing", messages=asked, max_tokens=12, extra_body={"temperature": 0})
        return "".join(block.text for block in answer.content if block.type == "text")


@pytest.mark.parametrize("ask", [by_chat, by_response, by_message])
def test_an_answer_depends_on_the_image(eyes, ask: Callable[..., str]):
    red, blue, red_again = (ask(eyes, colour) for colour in (RED, BLUE, RED))
    assert red == red_again != blue
    assert red


def test_a_format_binds_the_answer_about_an_image(eyes):
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    for tools in ({}, {"tools": [TOOL]}):
        assert json.loads(by_chat(eyes, RED, max_tokens=60, response_format=form, **tools))["colour"] in {"red", "blue"}


def test_what_cannot_be_done_with_an_image_is_rejected(eyes):
    with pytest.raises(openai.BadRequestError, match="cannot demand a call in a conversation with images"):
        by_chat(eyes, RED, tools=[TOOL], tool_choice="required")
    broken = base64.b64encode(b"no image").decode()
    with pytest.raises(openai.BadRequestError, match="Failed to load image"):
        eyes.chat.completions.create(model="seeing", messages=content(f"data:image/png;base64,{broken}"))


def test_no_url_of_an_image_is_fetched(seeing):
    told = refusal(seeing, "seeing", messages=json.dumps(content("http://127.0.0.1:1/a.png")))
    assert "an image in 'messages' must be a data URL in base64" in told


def test_a_model_without_an_encoder_says_what_it_needs(server):
    told = refusal(server, "llama", messages=json.dumps(content(f"data:image/png;base64,{png(RED)}")))
    assert "supports images in 'messages' with 'mmproj' in 'engine_options' of model.json only" in told
