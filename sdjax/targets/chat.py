"""Chat templates: untrusted Jinja programs that come with a checkpoint, run in a sandbox and with the helpers they expect.

Their clock stands still, at `TODAY`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]  # {"role": "user", "content": "…"}, and whatever else the template reads

# What templates that print today's date are told, always: with the true one, token ids would change at midnight, a stopped
# run could not go on the next day, and no two laboratories would decode the same prompts. It is Llama 3.2's own default.
TODAY = datetime(2024, 7, 26)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks what the assistant wrote, for training; here it only prints it."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: str, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
    """The conversation as the text the model was trained on. ValueError if messages are malformed or the template objects."""
    check_messages(messages)
    try:
        return _compiled(template).render(messages=list(messages), **variables)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise ValueError(f"the chat template cannot render these messages: {error}") from error


def check_messages(messages: Sequence[Message]) -> None:
    """Raises ValueError unless there is at least one message and each has a role."""
    if isinstance(messages, str | Mapping) or not messages:
        raise ValueError(f'messages is {messages!r:.80}; give a non-empty list of {{"role": …, "content": …}}')
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f'message {i} is {message!r:.80}; it must be {{"role": …, "content": …}}')


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    # The same settings and helpers as transformers': templates are written against them.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = TODAY.strftime
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template is no valid Jinja: {error}") from error


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
