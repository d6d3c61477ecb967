"""OpenAI's API over models that take and give the tensors of Triton's vLLM backend."""
