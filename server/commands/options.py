"""Reads the settings: flags override the environment (``CROSSTURN_PORT``), which overrides the file of
``--config``."""

from __future__ import annotations

import os
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import ByteSize, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from model.errors import CrossturnError
from server.settings import SECTIONS, Section, Settings, table_of

PREFIX = "CROSSTURN_"


class OptionError(CrossturnError):
    """An option is invalid; the message names it as it was given."""


class _Sourced(Settings, BaseSettings):
    """Settings that are read from flags and from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_prefix_target="all",  # otherwise API_KEY would be read as well as CROSSTURN_API_KEY
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        validate_default=False,
    )


def add_settings(parser: ArgumentParser) -> None:
    """Add a flag for every setting to ``parser``, under the heading of its section."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=os.environ.get(f"{PREFIX}CONFIG"),
        help="a TOML file of these options, named without the dashes",
    )
    groups = {section: parser.add_argument_group((section.__doc__ or "").rstrip(".")) for section in SECTIONS}
    source = CliSettingsSource[ArgumentParser](
        _Sourced, root_parser=parser, add_argument_method=partial(_add_flag, groups)
    )
    parser.set_defaults(settings_source=source, refuse=parser.error)


def settings_of(chosen: Namespace) -> Settings:
    """The settings from the parsed options, the environment and the file.

    Ends the process with a message and status 2 when one of them is invalid, as argparse does.
    """
    refuse: Callable[[str], NoReturn] = chosen.refuse
    try:
        return read(chosen.settings_source, chosen, chosen.config)
    except OptionError as error:
        refuse(str(error))


def read(source: CliSettingsSource[ArgumentParser], chosen: Namespace, config: str | None) -> Settings:
    """The settings.

    Raises:
        OptionError: one of them is invalid, or the file cannot be read.
    """
    filed = {} if config is None else _from_file(Path(config).expanduser())

    class Sourced(_Sourced):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no such file is read
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, filed)

    try:
        found = Sourced(_cli_settings_source=source(parsed_args=chosen))
    except ValidationError as error:
        raise OptionError(_sentence(error)) from None
    return Settings.model_validate({name: getattr(found, name) for name in found.model_fields_set})


def read_file(path: Path) -> Settings:
    """The settings in a file alone.

    Raises:
        OptionError: one of them is invalid, or the file cannot be read.
    """
    try:
        return Settings.model_validate(_from_file(path))
    except ValidationError as error:
        raise OptionError(f"{path}: {_sentence(error)}") from None


def _from_file(path: Path) -> dict[str, Any]:
    """The options in the TOML file at ``path``: flat, or in a table for each section."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--config: {path} cannot be read: {error.strerror}") from None
    except (ValueError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"--config: {path} is not TOML: {error}") from None
    tables = {table_of(section): section for section in SECTIONS}
    options: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and name in tables:
            for inner, inner_value in value.items():
                options[_known(inner, tables[name], f"{path}, table [{name}]")] = inner_value
        else:
            options[_known(name, Settings, str(path))] = value
    return options


def _known(name: str, section: type[Section] | type[Settings], where: str) -> str:
    option = name.replace("-", "_")
    if option not in section.model_fields:
        raise OptionError(f"--config: {where} has the option '{name}', which does not exist there")
    return option


def _add_flag(groups: Mapping[type[Section], Any], parser: Any, *flags: str, **kwargs: Any) -> Any:
    """Like argparse's own ``add_argument``, but under a heading, and with a readable help text."""
    name = kwargs.get("dest", "")
    section = next((section for section in SECTIONS if name in section.model_fields), None)
    if section is None:
        return parser.add_argument(*flags, **kwargs)
    field = section.model_fields[name]
    told = field.description or ""
    if "(default" not in told and field.default not in (None, ()):
        told += f" (default: {_told(field.default)})"
    kwargs["help"] = told.replace("%", "%%")
    if "metavar" in kwargs:
        kwargs["metavar"] = _metavar(name, field.annotation)
    if len(flags) > 1:
        flags = flags[::-1]  # a repeatable flag is named in the singular
    return groups[section].add_argument(*flags, **kwargs)


def _metavar(name: str, annotation: object) -> str:
    """The placeholder of an option's value in ``--help``: its choices, or a word for its type."""
    if get_origin(annotation) is Literal:
        return "{" + ",".join(str(choice) for choice in get_args(annotation)) + "}"
    if annotation is ByteSize:
        return "SIZE"
    if annotation is Path:
        return "PATH"
    if annotation is int:
        return "N"
    if annotation is float:
        return "SECONDS" if name.endswith("seconds") else "R"
    inner = [_metavar(name, part) for part in get_args(annotation)]
    return next((word for word in inner if word != "VALUE"), "VALUE") if inner else "VALUE"


def _told(default: object) -> str:
    match default:
        case bool():
            return "yes" if default else "no"
        case tuple():
            return ", ".join(default)
        case int() if hasattr(default, "human_readable"):
            return str(default.human_readable())
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def _sentence(error: ValidationError) -> str:
    """The first error, with the name of the flag."""
    detail = error.errors(include_url=False)[0]
    name = str(detail["loc"][0])
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"argument --{name.replace('_', '-')}: {message[:1].lower()}{message[1:]}"
