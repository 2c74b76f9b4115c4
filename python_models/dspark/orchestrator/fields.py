"""One value of a request, from a tensor or from JSON, as a Python value of the kind it must have.

Every function raises InvalidRequestError that names the parameter, says what came and what was expected.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.errors import InvalidRequestError

Array = npt.NDArray[Any]


def from_tensor(name: str, array: Array, is_list: bool) -> Any:
    """The Python value in a tensor: a list for shape [n], a scalar for shape [1]; bytes are read as UTF-8."""
    if array.ndim != 1 or (not is_list and array.size != 1):
        expected = "[n]" if is_list else "[1]"
        raise InvalidRequestError(f"{name}: shape {list(array.shape)} where {expected} is expected")
    values = [_text(name, value) if isinstance(value, bytes) else value for value in array.tolist()]
    return values if is_list else values[0]


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{name} is not valid UTF-8: {error.reason} at byte {error.start}") from error


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_kind(name, value, "text")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings; one string counts as a list of one."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list):
        raise _wrong_kind(name, value, "a list of strings")
    return tuple(text(name, item) for item in values)


def flag(name: str, value: Any) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise _wrong_kind(name, value, "true or false")
    return value


def integer(name: str, value: Any) -> int:
    """A whole number, or text that spells one."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise _wrong_kind(name, value, "a whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_kind(name, value, "a whole number")
    return value


def integers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise _wrong_kind(name, value, "a list of whole numbers")
    return tuple(integer(name, item) for item in value)


def number(name: str, value: Any) -> float:
    """A number that is finite in fp32, or text that spells one."""
    try:
        if isinstance(value, bool):
            raise ValueError
        with np.errstate(over="ignore"):
            result = float(np.float32(float(value)))
    except (TypeError, ValueError, OverflowError):
        raise _wrong_kind(name, value, "a number") from None
    if not math.isfinite(result):
        raise InvalidRequestError(f"{name} is {value!r}; a finite number is expected")
    return result


def within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} is {value}; a number from {low} to {high} is expected")
    return value


def _wrong_kind(name: str, value: Any, expected: str) -> InvalidRequestError:
    shown = repr(value)
    return InvalidRequestError(f"{name} is {shown if len(shown) <= 60 else shown[:57] + '...'}; {expected} is expected")
