"""mlx-lm's modules for the tests that put layers of their own around them."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn
from mlx_lm.models import qwen3_5

from model.checkpoint.config import text_arguments


def random_modules(raw: dict[str, Any]) -> nn.Module:
    """The whole model of a ``config.json``, with random weights that are not computed yet."""
    arguments = qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text_arguments(raw))
    model: nn.Module = qwen3_5.Model(arguments)
    return model
