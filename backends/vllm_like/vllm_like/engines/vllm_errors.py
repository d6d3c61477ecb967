"""Whose fault an error of vLLM is: of the request, of how much there is to do, or of the engine."""

from __future__ import annotations

from http import HTTPStatus

from vllm_like.engines.base import BusyError, CallerError


def told(error: Exception) -> Exception:
    """*error* as what it means to who asked.

    In earlier releases whatever is wrong with a request is a ValueError; later ones have a class for it, which is none.
    """
    if isinstance(error, (CallerError, BusyError)):
        return error
    text = _text(error)
    if isinstance(error, (ValueError, _class("VLLMClientError"))):
        return CallerError(text)
    if getattr(error, "http_status", None) == HTTPStatus.SERVICE_UNAVAILABLE:
        return BusyError(text)
    return error if text == str(error) else RuntimeError(text)


def _text(error: Exception) -> str:
    """What it says; vLLM wraps some errors in one without a word."""
    return str(error) or str(error.__cause__ or "") or type(error).__name__


def _class(name: str) -> type:
    try:
        from vllm import exceptions
    except ImportError:
        return CallerError
    found: type = getattr(exceptions, name, CallerError)
    return found
