"""What an operator decides: every option once, with its name, its default and the sentence that explains it.

``server/commands/options.py`` reads them from flags, the environment and a file. A room takes its own
section, and is handed the whole :class:`Settings`, which is all of them.
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
    """Text from a flag or the environment as the names in it, empty ones left out."""
    if isinstance(value, str):
        return tuple(name for part in value.split(",") if (name := part.strip()))
    return value


def _path(value: object) -> object:
    if value == "":
        raise ValueError("an empty path is no path")
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
        raise ValueError("it is given, but names nothing")
    return names


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_some)]
"""A flag that is given several times, or names between commas. Who gives it must name something."""
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
        None, description="the directory of a LoRA adapter to put over the model"
    )
    dtype: Literal["float16", "bfloat16", "float32"] | None = Field(
        None,
        description="what to compute in; float16 is faster on chips without bfloat16, M1 and M2 "
        "(default: the checkpoint's own, float32 on the CPU)",
    )
    kernels: bool = Field(
        True,
        description="compute by kernels made for the device; off, by MLX's own operations alone, where "
        "`crossturn check` finds a difference",
    )
    kv_bits: Literal[8, 4] | None = Field(
        None,
        description="store keys and values in so many bits: less memory a token, less exact "
        "(default: as computed)",
    )
    served_model_names: Names = Field(
        (),
        validation_alias=AliasChoices("served_model_names", "served_model_name"),
        description="a further name that requests may use; repeatable, replies carry the first",
    )
    model_aliases: Names = Field(
        (),
        validation_alias=AliasChoices("model_aliases", "model_alias"),
        description="a pattern of further names that requests may use, such as 'claude-*'; repeatable",
    )
    context_length: int | None = Field(
        None, gt=0, description="longest conversation in tokens, reply included (default: the model's limit)"
    )
    thinking: bool | None = Field(
        None, description="think or not where a request does not say (default: the chat template decides)"
    )


class CacheSettings(Section):
    """Memory."""

    memory_budget: Size | None = Field(
        None, description="memory for retained conversations, e.g. 8GiB (default: from the machine)"
    )
    wire_weights: bool = Field(
        False, description="keep the weights resident on a Mac, so that idle time does not page them out"
    )
    cache_dir: SomePath | None = Field(
        None, description="a directory that keeps conversations across restarts (default: none)"
    )
    cache_dir_size: Size = Field(ByteSize(16 * 1024**3), description="what that directory may hold")
    response_store: Size = Field(
        ByteSize(256 * 1024**2), description="what responses kept under their ids may take"
    )
    preload: Files = Field(
        (),
        description="a prompt pack, or an exported session whose system prompt and tools every session may "
        "begin with; repeatable",
    )
    share_prefixes: bool = Field(True, description="share system prompts between sessions of a tenant")
    ring_bytes: Size | None = Field(
        None, description="what the checkpoints of one conversation may hold (default: no bound of their own)"
    )
    share_histories: bool = Field(
        False,
        description="share whatever conversations of a tenant have in common, and tell in which they do",
    )


class EngineSettings(Section):
    """Work."""

    max_running: int = Field(16, gt=0, description="replies that are decoded together at most")
    max_waiting: int = Field(256, gt=0, description="requests that may wait; one more is refused with 503")
    queue_seconds: Seconds | None = Field(
        None, description="refuse a request that has waited so long for its turn (default: it waits)"
    )
    max_running_per_key: int | None = Field(
        None, gt=0, description="of --max-running, what one API key may take (default: all)"
    )
    max_waiting_per_key: int | None = Field(
        None, gt=0, description="of --max-waiting, what one API key may take (default: all)"
    )
    tokens_per_minute: int | None = Field(
        None, gt=0, description="tokens, read and written, that one API key gets a minute (default: no limit)"
    )
    idle_prefill: bool = Field(True, description="read the known part of the next prompt while idle")
    drafts: bool = Field(
        True, description="write several tokens at a time where they can be guessed; replies are the same"
    )
    keep_fed_ids: bool = Field(
        False, description="a message that reads the same as what was fed keeps the tokens that were fed"
    )
    stream_interval_seconds: SecondsOrNone = Field(
        0.04,
        description="how long text may wait for more, where tokens come faster; 0 sends each on its own",
    )


class HttpSettings(Section):
    """HTTP."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="0 takes a free one")
    api_keys: Names = Field(
        (),
        validation_alias=AliasChoices("api_keys", "api_key"),
        repr=False,
        description="a key that requests must carry; repeatable, or comma-separated in CROSSTURN_API_KEYS",
    )
    api_key_file: File | None = Field(
        None, description="a file of further keys: on each line a name and the key's SHA-256"
    )
    allowed_hosts: Names = Field(
        (),
        validation_alias=AliasChoices("allowed_hosts", "allowed_host"),
        description="a name, besides localhost and addresses, by which a server without keys may be called; "
        "repeatable, * for any",
    )
    cors_origins: Names = Field(
        (),
        validation_alias=AliasChoices("cors_origins", "cors_origin"),
        description="an origin whose pages may call, besides those on this machine; repeatable, * for any",
    )
    server_name: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[\x21-\x7e]{1,128}$",
        description="told in the header X-Served-By of every response (default: the machine's name)",
    )
    show_schemas: bool = Field(
        True,
        description="show the model the JSON schema that its answer must match, behind the last message, "
        "unless the messages hold it",
    )
    reasoning_field: ReasoningField = Field("reasoning_content", description="where thoughts are sent")
    max_body: Size = Field(ByteSize(32 * 1024**2), description="longest request body")
    receive_seconds: Seconds = Field(
        60.0, description="how long the head of a request, and then its body, may take to arrive"
    )
    keep_alive_seconds: Seconds = Field(5.0, description="a stream is silent at most that long")
    stall_seconds: Seconds = Field(300.0, description="give up on a request when nothing moves for so long")
    unready_seconds: SecondsOrNone = Field(
        0.0, description="at the end /ready says 503 for so long before no more requests are taken"
    )
    drain_seconds: SecondsOrNone = Field(5.0, description="how long running requests may finish at the end")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="of the log on stderr"
    )
    log_format: Literal["text", "json"] = Field("text", description="lines for people or for machines")
    otel: bool = Field(
        False, description="send a trace of every request, as OpenTelemetry's OTEL_ variables say"
    )
    metrics_key: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="a key for /metrics and /v1/stats alone; several API keys need it there",
    )


class Settings(ModelSettings, CacheSettings, EngineSettings, HttpSettings):
    """One server's configuration."""


SECTIONS: tuple[type[Section], ...] = (ModelSettings, CacheSettings, EngineSettings, HttpSettings)
"""In the order of ``--help``. A file of settings may have a table for each: ``[model]``, ``[cache]``, ..."""


def table_of(section: type[Section]) -> str:
    """What the table of ``section`` is called in a file of settings."""
    return section.__name__.removesuffix("Settings").lower()
