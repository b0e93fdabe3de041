"""How each coding agent is configured for a server: by its environment, its arguments and files in a folder
of our own, never in the user's own files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NO_KEY = "unused"
"""Agents want a key even if the server asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an agent must know about a server.

    Attributes:
        url: ends in ``/v1``.
        key: an API key, or None.
        model: the name of the model that is served.
        context_length: tokens that a prompt and its reply may have together.
        session: a session name for agents that do not send one.
        folder: where files may be written; it is deleted when the agent ends.
    """

    url: str
    key: str | None
    model: str
    context_length: int
    session: str
    folder: Path

    @property
    def max_output(self) -> int:
        """The reply tokens that an agent should reserve: it compacts when they no longer fit."""
        return min(32_000, self.context_length // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The configuration of an agent.

    Attributes:
        environment: added to the user's; an empty value hides a variable of theirs.
        arguments: placed before the user's.
        files: by their path in the place's folder.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A program that can be started.

    Attributes:
        program: its name in the PATH.
        install: the command that installs it.
    """

    program: str
    install: str
    setup: Callable[[Place], Setup]


def claude(place: Place) -> Setup:
    """Claude Code: all its model names are mapped to ours."""
    roles = ("OPUS", "SONNET", "HAIKU", "FABLE")
    return Setup(
        environment={
            "ANTHROPIC_BASE_URL": place.url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": place.key or NO_KEY,
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_MODEL": place.model,
            **{f"ANTHROPIC_DEFAULT_{role}_MODEL": place.model for role in roles},
            "CLAUDE_CODE_SUBAGENT_MODEL": place.model,
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(place.context_length),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(place.max_output),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    )


def codex(place: Place) -> Setup:
    """codex: a provider, by overrides of its configuration."""
    values: dict[str, Any] = {
        "model": place.model,
        "model_provider": "crossturn",
        "model_context_window": place.context_length,
        "web_search": "disabled",
        "model_providers.crossturn.name": "crossturn",
        "model_providers.crossturn.base_url": place.url,
        "model_providers.crossturn.wire_api": "responses",
        "model_providers.crossturn.env_key": "CROSSTURN_API_KEY",
    }
    # Its values are TOML, which writes strings and numbers as JSON does.
    overrides = [text for name, value in values.items() for text in ("-c", f"{name}={json.dumps(value)}")]
    return Setup(environment={"CROSSTURN_API_KEY": place.key or NO_KEY}, arguments=tuple(overrides))


def opencode(place: Place) -> Setup:
    """opencode: a provider, by a configuration in its environment."""
    model = {
        "name": place.model,
        "reasoning": True,
        "tool_call": True,
        "limit": {"context": place.context_length, "output": place.max_output},
    }
    options = {
        "baseURL": place.url,
        "apiKey": place.key or NO_KEY,
        "headers": {"X-Session-Id": place.session},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "crossturn",
        "options": options,
        "models": {place.model: model},
    }
    config = {
        "model": f"crossturn/{place.model}",
        "small_model": f"crossturn/{place.model}",
        "provider": {"crossturn": provider},
    }
    return Setup(environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def qwen(place: Place) -> Setup:
    """qwen-code: its environment, and a settings file that overrides the user's for the rest."""
    generation = {
        "contextWindowSize": place.context_length,
        "customHeaders": {"X-Session-Id": place.session},
    }
    settings = {
        "model": {"name": place.model, "generationConfig": generation},
        "security": {"auth": {"selectedType": "openai"}},
    }
    return Setup(
        environment={
            "OPENAI_BASE_URL": place.url,
            "OPENAI_API_KEY": place.key or NO_KEY,
            "OPENAI_MODEL": place.model,
            "QWEN_CODE_SYSTEM_SETTINGS_PATH": str(place.folder / "settings.json"),
        },
        arguments=("--auth-type", "openai"),
        files={"settings.json": json.dumps(settings, indent=2)},
    )


def pi(place: Place) -> Setup:
    """pi: an extension that adds a provider."""
    provider = {
        "baseUrl": place.url,
        "apiKey": place.key or NO_KEY,
        "api": "openai-completions",
        "headers": {"X-Session-Id": place.session},
        "models": [
            {
                "id": place.model,
                "name": place.model,
                "reasoning": True,
                "input": ["text"],
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                "contextWindow": place.context_length,
                "maxTokens": place.max_output,
            }
        ],
    }
    extension = (
        f'export default (pi) => pi.registerProvider("crossturn", {json.dumps(provider, indent=2)});\n'
    )
    return Setup(
        arguments=(
            *("--extension", str(place.folder / "crossturn.js")),
            *("--provider", "crossturn", "--model", place.model),
        ),
        files={"crossturn.js": extension},
    )


def aider(place: Place) -> Setup:
    """aider: two files, with the model's limits and the parameters of its requests."""
    name = f"openai/{place.model}"
    known = {
        "max_tokens": place.max_output,
        "max_input_tokens": place.context_length,
        "max_output_tokens": place.max_output,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    # JSON is valid YAML.
    sent = [{"name": name, "extra_params": {"extra_headers": {"X-Session-Id": place.session}}}]
    return Setup(
        environment={"OPENAI_API_BASE": place.url, "OPENAI_API_KEY": place.key or NO_KEY},
        arguments=(
            *("--model", name, "--weak-model", name),
            *("--model-metadata-file", str(place.folder / "metadata.json")),
            *("--model-settings-file", str(place.folder / "settings.yml")),
        ),
        files={"metadata.json": json.dumps({name: known}), "settings.yml": json.dumps(sent)},
    )


AGENTS: Mapping[str, Agent] = {
    "codex": Agent(program="codex", install="npm install -g @openai/codex", setup=codex),
    "claude": Agent(program="claude", install="npm install -g @anthropic-ai/claude-code", setup=claude),
    "opencode": Agent(program="opencode", install="npm install -g opencode-ai", setup=opencode),
    "qwen": Agent(program="qwen", install="npm install -g @qwen-code/qwen-code", setup=qwen),
    "pi": Agent(program="pi", install="npm install -g @mariozechner/pi-coding-agent", setup=pi),
    "aider": Agent(
        program="aider", install="python -m pip install aider-install && aider-install", setup=aider
    ),
}
"""All agents by their names on the command line."""
