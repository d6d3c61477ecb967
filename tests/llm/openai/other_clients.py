"""Asks a server with litellm and langchain-openai, as a program of their users does; prints what they returned as JSON.

It runs in an interpreter of its own: litellm needs an older openai than the one that other tests use.
"""

import json
import sys


def with_litellm(base: str) -> dict:
    import litellm

    litellm.telemetry = False
    where = {"api_base": base, "api_key": "any", "model": "openai/speaker"}
    talk = [{"role": "user", "content": "one two three"}]
    whole = litellm.completion(messages=talk, **where)
    streamed = litellm.completion(messages=talk, stream=True, **where)
    called = litellm.completion(messages=talk, tools=[TOOL], tool_choice="auto", **where)
    (call,) = called.choices[0].message.tool_calls
    embedded = litellm.embedding(input=["ab", "cde"], **where, encoding_format="float")
    return {
        "text": whole.choices[0].message.content,
        "reason": whole.choices[0].finish_reason,
        "tokens": whole.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in streamed),
        "call": [call.function.name, json.loads(call.function.arguments)],
        "call_reason": called.choices[0].finish_reason,
        "vectors": [each["embedding"] for each in embedded.data],
        "error": _error(lambda: litellm.completion(messages=[{"role": "user", "content": "fail"}], **where)),
        "unknown": _error(lambda: litellm.completion(messages=talk, **{**where, "model": "openai/nosuch"})),
    }


def with_langchain(base: str) -> dict:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return city

    model = ChatOpenAI(model="speaker", base_url=base, api_key="any", max_retries=0, stream_usage=True)
    whole = model.invoke("one two three")
    parts = list(model.stream("one two three"))
    (call,) = model.bind_tools([weather]).invoke("one two").tool_calls
    responses = ChatOpenAI(model="speaker", base_url=base, api_key="any", max_retries=0, use_responses_api=True)
    vectors = OpenAIEmbeddings(model="speaker", base_url=base, api_key="any", check_embedding_ctx_length=False)
    return {
        "text": whole.content,
        "tokens": whole.usage_metadata["output_tokens"],
        "streamed": "".join(part.content for part in parts),
        "streamed_tokens": sum((part.usage_metadata or {}).get("output_tokens", 0) for part in parts),
        "call": [call["name"], call["args"]],
        "response": responses.invoke("one two three").text,
        "vectors": vectors.embed_documents(["ab", "cde"]),
        "batch": [each.content for each in model.batch(["one", "two"])],
        "error": _error(lambda: model.invoke("fail")),
    }


TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def _error(call) -> list:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


if __name__ == "__main__":
    ask = {"litellm": with_litellm, "langchain": with_langchain}[sys.argv[1]]
    print(json.dumps(ask(sys.argv[2])))
