"""The tree of errors that crossturn raises on purpose.

::

    CrossturnError
    ├── ModelError            the checkpoint or the machine cannot serve (before the server is up)
    │   ├── BackendError      no usable MLX backend
    │   ├── ModelNotFoundError    no such directory, demo or cached Hub repository
    │   └── CheckpointError   files are there but cannot be loaded as a Qwen3.5 model
    ├── GrammarError          a reply cannot be kept to its grammar any further
    └── InputError            what a client sent cannot be done; names the parameter
        ├── PromptTooLongError    the conversation is longer than the context
        └── (HTTP-only kinds are in server/errors.py)

Only ``server/errors.py`` turns them into HTTP. Our own invariants are asserts, not errors.
"""

from __future__ import annotations


def shortened(text: str, limit: int = 800) -> str:
    """``text``, or as much of it as may be told again."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class CrossturnError(Exception):
    """Root of the tree."""


class ModelError(CrossturnError):
    """The model cannot be served; the message is one line for a terminal."""


class BackendError(ModelError):
    """MLX has no usable backend here."""


class ModelNotFoundError(ModelError):
    """The name stands for no checkpoint that can be reached."""


class CheckpointError(ModelError):
    """The files are there but are not a checkpoint this project can load."""


class GrammarError(CrossturnError):
    """A reply cannot be kept to its grammar any further; the message is the library's, one line."""


class InputError(CrossturnError):
    """A request asks for something that cannot be done.

    Args:
        message: one sentence for the client.
        param: the request field at fault, in OpenAI's dotted form (``messages[2].content``).
        code: a machine-readable code in OpenAI's style, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        message = shortened(message)  # some hold what a client wrote
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class PromptTooLongError(InputError):
    """A prompt leaves no room for a reply.

    Clients that compact their conversation then look for the words of their own API.

    Args:
        n_tokens: of the prompt.
        limit: of the context, in tokens.
        is_exact: False where reading stopped at ``n_tokens``.
        param: the field that holds the conversation.
    """

    def __init__(self, n_tokens: int, limit: int, *, is_exact: bool = True, param: str = "messages") -> None:
        told = f"{n_tokens}" if is_exact else f"at least {n_tokens}"
        super().__init__(
            f"This model's maximum context length is {limit} tokens, reply included. However, your prompt "
            f"has {told} tokens. Please shorten it.",
            param=param,
            code="context_length_exceeded",
        )
        self.n_tokens = n_tokens
        self.limit = limit
