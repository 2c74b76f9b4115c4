"""What the translators of other packagings share: a field that is not understood is refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dspark.errors import ConfigurationError


def refuse_unknown(values: Mapping[str, Any], known: Collection[str], source: str, prefix: str = "") -> None:
    """Raise ConfigurationError for a field outside `known`, unless it is switched off: null, false, 0 or empty."""
    for field, value in values.items():
        if field not in known and value:
            raise ConfigurationError(f"{source}: field {prefix}{field} ({value!r}) is not understood")


def require(values: Mapping[str, Any], field: str, allowed: Collection[Any], source: str, prefix: str = "") -> None:
    """Raise ConfigurationError unless `field` is absent, null or one of `allowed`."""
    value = values.get(field)
    if value is not None and value not in allowed:
        expected = " or ".join(repr(choice) for choice in allowed)
        raise ConfigurationError(f"{source}: {prefix}{field} {value!r} is not supported, only {expected}")


def take_object(values: Mapping[str, Any], field: str, source: str) -> Mapping[str, Any]:
    """The JSON object in `field`. Raises ConfigurationError when it is missing or something else."""
    value = values.get(field)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{source}: {field} must be a JSON object, not {value!r}")
    return value
