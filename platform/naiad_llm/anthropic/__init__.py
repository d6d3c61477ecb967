"""Anthropic's Messages API, beside OpenAI's on the same port.

`request` reads a request into the form that all requests for text share, `form` writes the answer, `errors` the errors.
"""
