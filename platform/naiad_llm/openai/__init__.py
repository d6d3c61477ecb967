"""OpenAI's HTTP API over models with the tensors of Triton's vLLM backend.

`naiad_llm.api` dispatches a request. Every request for text becomes one `TextRequest`: `requests` reads chats and
completions, `responses.request` those of the Responses API. `submission` submits it, `vllm_tensors` converts to and
from the model's tensors, and `text_response` collects the model's output for a form: `completions` writes choices,
`block_form` writes blocks (`answer_blocks`) in the form of a protocol. All other requests become a `ModelRequest`
(`model_inputs`) with the function that makes the body of its response.
"""
