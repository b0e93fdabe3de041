"""The options of a server, each defined once: its name, its default and its help text.

``server/commands/options.py`` reads them from flags, the environment and a file. Each room has a section of
its own, and is given the whole :class:`Settings`.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field
from pydantic_settings import NoDecode

ReasoningField = Literal["reasoning_content", "reasoning", "both"]


def _split(value: object) -> object:
    """The comma-separated names in text from a flag or the environment, without empty ones."""
    if isinstance(value, str):
        return tuple(name for part in value.split(",") if (name := part.strip()))
    return value


def _path(value: object) -> object:
    if value == "":
        raise ValueError("the path is empty")
    # Unlike Path.expanduser, os.path's keeps what it cannot expand.
    return Path(os.path.expanduser(value)) if isinstance(value, str) else value


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"there is no directory {path}")
    return path


def _file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _files(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(_file(Path(os.path.expanduser(path))) for path in paths)


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("it names nothing")
    return names


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_some)]
"""A repeatable flag, or comma-separated names; at least one."""
Files = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split), AfterValidator(_files)]
SomePath = Annotated[Path, BeforeValidator(_path)]
Directory = Annotated[SomePath, AfterValidator(_directory)]
File = Annotated[SomePath, AfterValidator(_file)]
Size = Annotated[ByteSize, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class Section(BaseModel):
    """A room's options. The first line of a section's docstring is its heading in ``--help``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, protected_namespaces=()
    )


class ModelSettings(Section):
    """Model."""

    model: str = Field("demo", min_length=1, description="demo, a directory, or a Hugging Face repository")
    adapter_path: Directory | None = Field(
        None, description="the directory of a LoRA adapter to apply to the model"
    )
    mtp_path: Directory | None = Field(
        None,
        description="the directory of a multi-token prediction head to draft with (default: the checkpoint's "
        "own, if it has one)",
    )
    dtype: Literal["float16", "bfloat16", "float32"] | None = Field(
        None,
        description="the dtype to compute in; float16 is faster on chips without bfloat16 (M1 and M2) "
        "(default: the checkpoint's own, float32 on the CPU)",
    )
    kernels: bool = Field(
        True,
        description="compute with kernels of our own; turn them off to use only MLX's operations if "
        "`crossturn check` finds a difference",
    )
    kv_bits: Literal[8, 4] | None = Field(
        None,
        description="quantize stored keys and values to so many bits: less memory per token, less precision "
        "(default: not quantized)",
    )
    served_model_names: Names = Field(
        (),
        validation_alias=AliasChoices("served_model_names", "served_model_name"),
        description="a further model name that requests may use; repeatable, replies have the first",
    )
    model_aliases: Names = Field(
        (),
        validation_alias=AliasChoices("model_aliases", "model_alias"),
        description="a pattern of further model names that requests may use, such as 'claude-*'; repeatable",
    )
    context_length: int | None = Field(
        None, gt=0, description="limit of a prompt and its reply together, in tokens (default: the model's)"
    )
    thinking: bool | None = Field(
        None, description="whether to think if a request does not say (default: the chat template decides)"
    )


class CacheSettings(Section):
    """Memory."""

    memory_budget: Size | None = Field(
        None, description="memory for retained conversations, e.g. 8GiB (default: depends on the machine)"
    )
    wire_weights: bool = Field(
        False, description="keep the weights resident on a Mac, so that idle time does not page them out"
    )
    cache_dir: SomePath | None = Field(
        None, description="a directory that keeps conversations across restarts (default: none)"
    )
    cache_dir_size: Size = Field(ByteSize(16 * 1024**3), description="size limit of that directory")
    response_store: Size = Field(
        ByteSize(256 * 1024**2), description="memory for responses that are kept by their ids"
    )
    preload: Files = Field(
        (),
        description="a prompt pack, or an exported session whose system prompt and tools every session may "
        "begin with; repeatable",
    )
    share_prefixes: bool = Field(True, description="share system prompts between sessions of a tenant")
    ring_bytes: Size | None = Field(
        None,
        description="memory for the checkpoints of one conversation (default: only the budget limits them)",
    )
    share_histories: bool = Field(
        False,
        description="share all common beginnings of a tenant's conversations, and report their sources",
    )


class EngineSettings(Section):
    """Work."""

    max_running: int = Field(16, gt=0, description="how many replies may be decoded together")
    max_waiting: int = Field(
        256, gt=0, description="how many requests may wait; further ones are refused with 503"
    )
    queue_seconds: Seconds | None = Field(
        None, description="refuse a request that has waited so long (default: never)"
    )
    max_running_per_key: int | None = Field(
        None, gt=0, description="the share of --max-running that one API key may use (default: all)"
    )
    max_waiting_per_key: int | None = Field(
        None, gt=0, description="the share of --max-waiting that one API key may use (default: all)"
    )
    tokens_per_minute: int | None = Field(
        None, gt=0, description="limit of prompt and reply tokens per minute and API key (default: none)"
    )
    idle_prefill: bool = Field(True, description="prefill the known beginning of the next prompt while idle")
    drafts: bool = Field(
        True, description="decode several tokens at a time where drafts predict them; replies do not change"
    )
    keep_fed_ids: bool = Field(
        False, description="reuse the tokens that were fed for a message whose text is the same"
    )
    stream_interval_seconds: SecondsOrNone = Field(
        0.04,
        description="how long text may wait for more text, if tokens come faster; 0 sends each token at once",
    )


class HttpSettings(Section):
    """HTTP."""

    host: str = Field("127.0.0.1", min_length=1, description="the address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="the port to listen on; 0 for any free one")
    api_keys: Names = Field(
        (),
        validation_alias=AliasChoices("api_keys", "api_key"),
        repr=False,
        description="a key that requests must carry; repeatable, or comma-separated in CROSSTURN_API_KEYS",
    )
    api_key_file: File | None = Field(
        None, description="a file of further keys; each line has a name and the SHA-256 of the key"
    )
    allowed_hosts: Names = Field(
        (),
        validation_alias=AliasChoices("allowed_hosts", "allowed_host"),
        description="a host name, besides localhost and addresses, for requests to a server without keys; "
        "repeatable, * for any",
    )
    cors_origins: Names = Field(
        (),
        validation_alias=AliasChoices("cors_origins", "cors_origin"),
        description="an origin whose pages may send requests, besides this machine; repeatable, * for any",
    )
    server_name: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[\x21-\x7e]{1,128}$",
        description="the value of the header X-Served-By in every response (default: the host name)",
    )
    show_schemas: bool = Field(
        True,
        description="show the model the JSON schema that its answer must match, after the last message, "
        "unless the messages contain it",
    )
    reasoning_field: ReasoningField = Field(
        "reasoning_content", description="the field in which thoughts are sent"
    )
    max_body: Size = Field(ByteSize(32 * 1024**2), description="the largest request body")
    receive_seconds: Seconds = Field(
        60.0, description="how long the head of a request, and then its body, may take to arrive"
    )
    keep_alive_seconds: Seconds = Field(
        5.0, description="a keep-alive is sent in a stream after so long without data"
    )
    stall_seconds: Seconds = Field(
        300.0, description="give up a request when it makes no progress for so long"
    )
    unready_seconds: SecondsOrNone = Field(
        0.0, description="how long /ready answers 503 before a stopping server refuses requests"
    )
    drain_seconds: SecondsOrNone = Field(
        5.0, description="how long running requests may take to finish when the server stops"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="the level of the log on stderr"
    )
    log_format: Literal["text", "json"] = Field("text", description="the format of log lines")
    otel: bool = Field(
        False, description="send a trace of every request, configured by OpenTelemetry's OTEL_ variables"
    )
    metrics_key: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="a key for /metrics and /v1/stats only; needed there if there are several API keys",
    )


class Settings(ModelSettings, CacheSettings, EngineSettings, HttpSettings):
    """The configuration of a server."""


SECTIONS: tuple[type[Section], ...] = (ModelSettings, CacheSettings, EngineSettings, HttpSettings)
"""In the order of ``--help``. A file of settings may have a table for each: ``[model]``, ``[cache]``, ..."""


def table_of(section: type[Section]) -> str:
    """The name of the table of ``section`` in a file of settings."""
    return section.__name__.removesuffix("Settings").lower()
