"""A whole network over mlx-lm's modules: its layers in order with their feed-forward halves, its head, and a
decode step through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

from model.checkpoint.config import ModelConfig
from model.layers.attention import Attention, StepGroup
from model.layers.gdn import Gdn, Trail
from model.layers.mtp import MtpHead
from model.layers.ops import AddNorm, Ops, Projection
from model.state import Recurrent

# One token to each of B sequences: ids [B], the groups that they stand in, the state of each GDN layer, to
# logits [B, V] in float32 and the rows [B, 1, H] after the last norm that they were made from, lazy or not.
# The states and the groups' rows advance.
Step = Callable[[mx.array, Sequence[StepGroup], list[Recurrent]], tuple[mx.array, mx.array]]


class Extend(Protocol):
    """T tokens to each of B sequences, of which some may be taken back: the decode step's way through a few
    tokens of a prompt, and through tokens that are only guessed."""

    def __call__(
        self,
        ids: mx.array,
        groups: Sequence[StepGroup],
        recurrent: Sequence[Recurrent],
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[Trail]]:
        """Feed ids [B, T]; the groups' rows advance.

        Args:
            capture_at: token counts in 1..T after which the states may be wanted, ascending, T the last.

        Returns:
            Rows [B, T, H] after the last norm, and what each GDN layer passed through.
        """


class Mlp:
    """A SwiGLU block: a dense layer's, or an expert that every token passes.

    Reads weights from ``block``, mlx-lm's.

    Attributes:
        inputs: the gate and up projections.
        output: the one down.
    """

    def __init__(self, block: nn.Module, ops: Ops) -> None:
        self.inputs = Projection(block, ["gate_proj", "up_proj"], ops.apply)
        self.output = block.down_proj
        self._ops = ops

    def __call__(self, x: mx.array) -> mx.array:
        """[..., H] to [..., H]."""
        return self._ops.apply(self.output, self._ops.swiglu(self.inputs, x))


class FeedForward:
    """Reads weights from ``block``, mlx-lm's dense MLP or its sparse mixture of experts.

    Attributes:
        mlp: of a dense layer; None where experts are mixed.
    """

    def __init__(self, block: nn.Module, ops: Ops) -> None:
        self._block = block
        self.mlp = Mlp(block, ops) if "gate_proj" in block else None

    def __call__(self, x: mx.array) -> mx.array:
        """[B, T, H] to [B, T, H]."""
        out: mx.array = (self.mlp or self._block)(x)
        return out


@dataclass(frozen=True, slots=True)
class Block:
    """A layer, without the norm in front: the layer before it has run that.

    Attributes:
        mixer: what looks at other tokens.
        add_mixed: adds its outputs, and norms the sum for the feed-forward half.
        feed_forward: what looks at one token.
        add_fed: adds its outputs, and norms the sum for the next layer, or for the head.
    """

    mixer: Gdn | Attention
    add_mixed: AddNorm
    feed_forward: FeedForward
    add_fed: AddNorm

    def step_gdn(
        self, x: mx.array, h: mx.array, window: mx.array, matrix: mx.array
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """One token of a GDN layer over plain arrays, as ``mx.compile`` takes them: the layer's input
        [B, 1, H], the same normed, and the state, to its output, the normed output and the state."""
        assert isinstance(self.mixer, Gdn)
        mixed, state = self.mixer.step(h, Recurrent(window, matrix))
        return *self.feed(x, mixed), state.window, state.matrix

    def feed(self, x: mx.array, mixed: mx.array) -> tuple[mx.array, mx.array]:
        """The layer's input and its mixer's outputs, [B, T, H], to its output and the normed output."""
        x, h = self.add_mixed(x, mixed)
        return self.add_fed(x, self.feed_forward(h))


@dataclass(frozen=True, slots=True)
class Network:
    """A model as a device runs it.

    Attributes:
        embed: ids [B, T] to rows [B, T, H], and those after the first norm.
        blocks: the layers.
        head: rows [..., H] after the last norm to logits [..., V] in float32.
        step: a decode step.
        extend: a step of several tokens.
        few_sizes: numbers of tokens for which :attr:`extend` builds something at first use, ascending. Of one
            sequence it feeds up to the last of them in less time than a prefill does.
        mtp: guesses the token after the next; None for a model without such a head.
    """

    embed: Callable[[mx.array], tuple[mx.array, mx.array]]
    blocks: Sequence[Block]
    head: Callable[[mx.array], mx.array]
    step: Step
    extend: Extend
    few_sizes: tuple[int, ...] = ()
    mtp: MtpHead | None = None


def network_of(
    model: nn.Module,
    config: ModelConfig,
    ops: Ops,
    *,
    gdn: Callable[[nn.Module, ModelConfig, Ops], Gdn] = Gdn,
    attention: Callable[[nn.Module, ModelConfig, Ops], Attention] = Attention,
    feed_forward: Callable[[nn.Module, Ops], FeedForward] = FeedForward,
    compiles: bool = False,
) -> Network:
    """The network over ``model``, mlx-lm's language model, with a step that goes layer by layer.

    Args:
        ops: what the layers compute with.
        gdn, attention, feed_forward: make the halves of the layers.
        compiles: the step of a GDN layer is compiled.
    """
    layers = model.model.layers
    norms = [*(layer.input_layernorm for layer in layers[1:]), model.model.norm]
    blocks = [
        Block(
            gdn(layer.linear_attn, config, ops)
            if type_ == "linear_attention"
            else attention(layer.self_attn, config, ops),
            ops.add_norm(layer.post_attention_layernorm),
            feed_forward(layer.mlp, ops),
            ops.add_norm(norm_after),
        )
        for layer, type_, norm_after in zip(layers, config.layer_types, norms, strict=True)
    ]
    last = head_of(model, config)

    def embed(ids: mx.array) -> tuple[mx.array, mx.array]:
        x = model.model.embed_tokens(ids)
        return x, layers[0].input_layernorm(x)

    def head(hidden: mx.array) -> mx.array:
        return ops.apply(last, hidden).astype(mx.float32)

    step = _layerwise(embed, blocks, head, compiles=compiles)
    mtp = None
    if "mtp" in model:
        (layer,) = model.mtp.layers
        halves = attention(layer.self_attn, config, ops), feed_forward(layer.mlp, ops)
        mtp = MtpHead(model.mtp, ops, model.model.embed_tokens, *halves)
    return Network(embed, blocks, head, step, _extension(embed, blocks), mtp=mtp)


def _layerwise(
    embed: Callable[[mx.array], tuple[mx.array, mx.array]],
    blocks: Sequence[Block],
    head: Callable[[mx.array], mx.array],
    *,
    compiles: bool,
) -> Step:
    """A :data:`Step` through one block after the other."""
    steps = [block.step_gdn for block in blocks if isinstance(block.mixer, Gdn)]
    gdn_steps = [mx.compile(step) for step in steps] if compiles else steps

    def step(
        ids: mx.array, groups: Sequence[StepGroup], recurrent: list[Recurrent]
    ) -> tuple[mx.array, mx.array]:
        n_full = n_gdn = 0
        x, h = embed(ids[:, None])
        for block in blocks:
            if isinstance(block.mixer, Gdn):
                past = recurrent[n_gdn]
                x, h, *after = gdn_steps[n_gdn](x, h, past.window, past.matrix)
                recurrent[n_gdn] = Recurrent(*after)
                n_gdn += 1
            else:
                x, h = block.feed(x, block.mixer.step(h, groups, n_full))
                n_full += 1
        return head(h)[:, 0], h

    return step


def _extension(embed: Callable[[mx.array], tuple[mx.array, mx.array]], blocks: Sequence[Block]) -> Extend:
    """An :class:`Extend` through one block after the other."""

    def extend(
        ids: mx.array,
        groups: Sequence[StepGroup],
        recurrent: Sequence[Recurrent],
        capture_at: Sequence[int],
    ) -> tuple[mx.array, list[Trail]]:
        past, n_full = iter(recurrent), count()
        trails: list[Trail] = []
        x, h = embed(ids)
        for block in blocks:
            if isinstance(block.mixer, Gdn):
                mixed, trail = block.mixer.extend(h, next(past), capture_at)
                trails.append(trail)
            else:
                mixed = block.mixer.step(h, groups, next(n_full))
            x, h = block.feed(x, mixed)
        return h, trails

    return extend


def head_of(model: nn.Module, config: ModelConfig) -> nn.Module:
    """The layer from hidden rows [..., H] to logits [..., V]."""
    if not config.tie_word_embeddings:
        head: nn.Module = model.lm_head
        return head
    embedding = model.model.embed_tokens
    if type(embedding) is nn.Embedding:
        tied = nn.Linear(1, 1, bias=False)
    elif type(embedding) is nn.QuantizedEmbedding:
        form = {"group_size": embedding.group_size, "bits": embedding.bits, "mode": embedding.mode}
        # A matrix of one group cannot be packed in every mode, and it is only there to be exchanged.
        tied = nn.QuantizedLinear(2 * embedding.group_size, 1, bias=False, **form)
    else:
        return _Tied(embedding)
    for name in ("weight", "scales", "biases"):
        if embedding.get(name) is not None:
            tied[name] = embedding[name]
    return tied


class _Tied(nn.Module):  # type: ignore[misc]  # mlx has no types
    """The head over an embedding that is neither plain nor quantised (LoRA)."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self._embedding = embedding

    def __call__(self, x: mx.array) -> mx.array:
        logits: mx.array = self._embedding.as_linear(x)
        return logits
