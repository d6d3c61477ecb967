"""The APIs of language models: OpenAI's, Anthropic's and the Model Context Protocol, on one port."""
