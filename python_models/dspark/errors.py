"""Every error a user can cause or meet; `model.py` turns them into Triton error codes in one place."""


class DSparkError(Exception):
    """Base of our own errors. The message says what was wrong, what was expected and what to do."""


class InvalidRequestError(DSparkError):
    """A request that can never succeed (Triton INVALID_ARG)."""


class OverloadedError(DSparkError):
    """The server refuses for now: queue full, or shutting down (Triton UNAVAILABLE)."""


class CancelledRequestError(DSparkError):
    """The client went away; its request ends with this (Triton CANCELLED)."""


class EngineError(DSparkError):
    """An engine step failed; the requests in flight end with this (Triton UNAVAILABLE)."""


class ConfigurationError(DSparkError):
    """Settings, engine folder or checkpoint do not fit together; raised before serving starts."""
