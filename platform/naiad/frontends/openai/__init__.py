"""OpenAI's HTTP API over models with the tensors of Triton's vLLM backend.

`api` dispatches a request; `requests` validates its JSON; `vllm_tensors` converts to and from the model's tensors;
`responses` writes the result. `embeddings` is the same for vectors.
"""
