"""Images in chats: what is passed to the model, by each API, and what is rejected."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import anthropic
import openai
import pytest

from .fake_models import Api, given, said, served

PNG = base64.b64encode(b"not looked into").decode()
URL = f"data:image/png;base64,{PNG}"
PARTS = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": URL}}]


def repeat(_, request, sink):
    sink.send(said(given(request, "messages")), True)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with served(repeat) as each:
        yield each


def contents(text):
    return [message["content"] for message in json.loads(text)["messages"]]


def test_every_api_passes_the_same_parts(api):
    base = f"http://127.0.0.1:{api.port}"
    with openai.OpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0) as client:
        chat = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": PARTS}])
        assert contents(chat.choices[0].message.content) == [PARTS]
        items = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": URL}]
        response = client.responses.create(model="fake", input=[{"role": "user", "content": items}])
        assert contents(response.output_text) == [PARTS]
        again = client.responses.create(model="fake", input="And now?", previous_response_id=response.id)
        assert contents(again.output_text)[0] == PARTS
    with anthropic.Anthropic(base_url=base, api_key="any", max_retries=0) as client:
        source = {"type": "base64", "media_type": "image/png", "data": PNG}
        blocks = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
        message = client.messages.create(model="fake", max_tokens=9, messages=[{"role": "user", "content": blocks}])
        assert contents(message.content[0].text) == [PARTS]


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png", "file:///etc/passwd", "data:text/html;base64,AAAA", "data:image/png;base64,?", "data:image/png,x", 5]
)  # fmt: skip
def test_images_that_are_not_in_the_request_are_rejected(api, url):
    content = [{"type": "image_url", "image_url": {"url": url}}]
    got = api.ask("chat/completions", messages=[{"role": "user", "content": content}])
    assert got.status == 400
    assert got.json()["error"]["message"].startswith("an image must be a data URL in base64")


def test_a_template_of_the_server_takes_no_images(tmp_path):
    from naiad_llm.openai.template import ChatTemplate

    (tmp_path / "t.jinja").write_text("{{ messages }}")
    with served(repeat, chat_template=ChatTemplate(tmp_path / "t.jinja")) as api:
        model = api.engine.models["fake"]
        model.inputs = tuple(tensor for tensor in model.inputs if tensor.name != "messages")
        got = api.ask("chat/completions", messages=[{"role": "user", "content": PARTS}])
        assert got.json()["error"]["message"] == "images in chats need a model with the input 'messages'"
