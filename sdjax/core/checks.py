"""Settings of the right type, or an error that names them: a float would else fail, or pass, far from where it was written."""

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any


def as_integer(value: Any, what: str) -> int:
    """`value` as an int; ValueError where it is not a whole number by type (1.0 is not)."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{what} is {value!r}; it must be an integer") from error


def as_integers(values: Any, what: str, each: str) -> tuple[int, ...]:
    """`values` in order, each of them once; ValueError where they are no integers, or one integer alone."""
    if not isinstance(values, Iterable):
        raise ValueError(f"{what} is {values!r}; it must be a sequence of integers")
    return tuple(sorted({as_integer(value, each) for value in values}))


def check_number(value: Any, what: str) -> None:
    """Raises ValueError for what is no number, such as None or a string."""
    if not isinstance(value, Real):
        raise ValueError(f"{what} is {value!r}; it must be a number")
