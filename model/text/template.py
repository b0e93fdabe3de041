"""Runs a checkpoint's Jinja chat template in a sandbox, with the names Hugging Face templates rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from model.errors import CheckpointError

TemplateMessage = Mapping[str, Any]
DICT_ATTRIBUTES = frozenset(dir(dict))
STR_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}
LOOP_NAMES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TemplateRefusedError(Exception):
    """The template would not render these messages; ``str()`` is its reason. Stays behind ``ChatFormat``."""


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        variables: the names of its own switches.
        reserved: names that a caller may not pass to it as switches.

    Raises:
        CheckpointError: the source is no Jinja template.
    """

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise CheckpointError(f"the chat template does not compile: {error}") from error
        self._named_tokens = dict(named_tokens)
        self.reserved = RESERVED | set(environment.globals) | set(named_tokens)
        self.variables = frozenset(names) - self.reserved

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[object] | None,
        kwargs: Mapping[str, object],
        add_generation_prompt: bool,
    ) -> str:
        """The conversation as text.

        Raises:
            TemplateRefusedError: the template raised, on purpose or by a fault of its own.
        """
        try:
            return self._template.render(
                self._named_tokens,
                **kwargs,
                messages=list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
            )
        except RecursionError as error:
            raise TemplateRefusedError("the conversation is nested too deeply") from error
        # The template is the checkpoint's code: whatever it trips over, the request cannot be served.
        except Exception as error:
            raise TemplateRefusedError(str(error) or type(error).__name__) from error


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way for what templates look up most: keys of plain dictionaries, methods
    of strings, and the public attributes of Jinja's own ``loop``. The sandbox's checks are about
    other things (underscores, code objects, changes to lists, ``format``) and cost most of a render."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in DICT_ATTRIBUTES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif (kind is str and attribute in STR_METHODS) or (kind is LoopContext and attribute in LOOP_NAMES):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``, which marks replies for training: its body."""

    tags = {"generation"}  # noqa: RUF012 - declared so in the base class

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; the model was trained on plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - templates may name the argument
    return datetime.now().strftime(format)
