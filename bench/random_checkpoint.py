"""A checkpoint of a published shape with random weights and the demo model's tokenizer, to be served."""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5
from shape_table import SHAPES

from model.checkpoint.hub import resolve

_OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def add_model_arguments(parser: ArgumentParser) -> None:
    """``--shape`` and ``--model``, which :func:`checkpoint` takes."""
    parser.add_argument("--shape", choices=SHAPES, help="weights are drawn at random")
    parser.add_argument("--model", default="demo", help="where there is no shape: directory, Hub name, demo")


@contextmanager
def checkpoint(shape: str | None, model: str) -> Iterator[Path]:
    """The folder of ``model``; where a ``shape`` is given, that of a model with random weights instead."""
    if shape is None:
        yield resolve(model)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield write_random_checkpoint(shape, Path(folder) / shape)


def write_random_checkpoint(shape: str, folder: Path) -> Path:
    """Write the checkpoint of ``shape`` to the new ``folder``, in bfloat16; its vocabulary is the demo's.

    Returns:
        ``folder``.
    """
    demo = resolve("demo")
    raw = json.loads((demo / "config.json").read_text())
    config = {
        **raw,
        **SHAPES[shape],
        "model_type": "qwen3_5_text",
        "vocab_size": raw["vocab_size"],
        "full_attention_interval": 4,
        "layer_types": [
            "full_attention" if i % 4 == 3 else "linear_attention"
            for i in range(SHAPES[shape]["num_hidden_layers"])
        ],
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in _OF_TOKENIZER:
        shutil.copy(demo / name, folder / name)
    model = qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=config))
    model.set_dtype(mx.bfloat16)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder
