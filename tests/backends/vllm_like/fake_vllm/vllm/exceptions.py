from http import HTTPStatus


class VLLMClientError(Exception):
    """No ValueError, as in the releases since there is this class."""


class VLLMValidationError(VLLMClientError):
    pass


class QueueOverflowError(Exception):
    http_status = HTTPStatus.SERVICE_UNAVAILABLE
