"""Frozen dataclasses of this package as JSON and back: safe to read from anywhere, since only data is made."""

import dataclasses
from enum import Enum
from importlib import import_module
from typing import Any


def describe(value: Any) -> Any:
    """A frozen dataclass and what it holds as JSON data, each with the path of its class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"class": path_of(type(value))} | fields
    if isinstance(value, Enum):
        return {"class": path_of(type(value)), "value": value.value}
    if isinstance(value, tuple):
        return [describe(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} cannot be described; a config holds numbers, texts, tuples and frozen dataclasses")


def rebuild(data: Any) -> Any:
    """The inverse of `describe`. ValueError for classes that are no frozen dataclass or enum of sdjax, and unknown fields."""
    if isinstance(data, list):
        return tuple(rebuild(part) for part in data)
    if not isinstance(data, dict):
        return data
    fields = {name: rebuild(part) for name, part in data.items() if name != "class"}
    found = class_at(data.get("class"))
    if issubclass(found, Enum):
        return found(fields.get("value"))
    known = {field.name for field in dataclasses.fields(found) if field.init}
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise ValueError(f"{data['class']} has no fields {unknown}; it has {sorted(known)}: written by another version?")
    try:
        return found(**fields)
    except TypeError as error:
        raise ValueError(f"{data['class']} cannot be made of {fields} ({error})") from error


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def class_at(path: Any) -> Any:
    """A frozen dataclass or an enum that a module of sdjax defines."""
    module, _, name = str(path).rpartition(".")
    if not module.startswith("sdjax."):
        raise ValueError(f"{path!r} is no class of sdjax")
    try:
        found = getattr(import_module(module), name, None)
    except ImportError as error:
        raise ValueError(f"{path!r} is no class of this sdjax; was it written by another version?") from error
    if isinstance(found, type) and found.__module__ == module:
        frozen = dataclasses.is_dataclass(found) and getattr(found, "__dataclass_params__").frozen  # noqa: B009
        if frozen or issubclass(found, Enum):
            return found
    raise ValueError(f"{path!r} is no frozen dataclass of this sdjax")
