"""From options to a loop that is ready: loads the model and sizes the memory around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cache.disk.files import Claim, claim
from cache.disk.tier import DiskTier
from cache.planner import AdapterId, CrossTurnPrefixMetadata
from cache.ring import RingLimits
from cache.store import Store
from model.backend import detect, without_kernels
from model.checkpoint.config import ModelConfig, read_config
from model.checkpoint.load import Progress, load
from model.codec import StateCodec
from model.device import Device
from model.errors import ModelError
from model.forward import Forward
from model.text.grammar.masks import GrammarTable
from model.text.tokenizer import TextTokenizer
from server.client import ModelInfo
from server.engine.loop import EngineLoop
from server.engine.options import LoopOptions
from server.engine.relief import LEAST_BUDGET


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engine loads and how much it may hold.

    Attributes:
        model_path: folder of the checkpoint.
        adapter_path: folder of a LoRA adapter made by mlx-lm, or None.
        dtype: what to compute in, ``float16``, ``bfloat16`` or ``float32``; None for what suits the device.
        kernels: compute by kernels made for the device, and not by MLX's own operations alone.
        kv_bits: 8 or 4 to store keys and values in so many bits, or None.
        hashes_file: remembers the hash of the weights between starts, or None.
        on_progress: told how much of the weights is read.
        wires_weights: whether the weights stay resident on a Mac, whatever else needs memory.
        context_length: tokens of a prompt and its reply together; None for the model's own limit.
        memory_budget: bytes for retained conversations; None for what the machine allows.
        cache_dir: a folder that keeps conversations across restarts, or None.
        cache_dir_bytes: what that folder may hold.
        ring: what the checkpoints of an entry may hold.
        shares_prefixes: whether slots of one tenant may copy a common system prefix from each other.
        shares_histories: whether they may copy all that they have in common.
        loop: how much is taken on at once.
        stall_s: an engine that has work and has not moved for so long is stuck.
    """

    model_path: Path
    adapter_path: Path | None = None
    dtype: str | None = None
    kernels: bool = True
    kv_bits: int | None = None
    hashes_file: Path | None = None
    wires_weights: bool = False
    on_progress: Progress | None = None
    context_length: int | None = None
    memory_budget: int | None = None
    cache_dir: Path | None = None
    cache_dir_bytes: int = 16 * 2**30
    ring: RingLimits = field(default_factory=RingLimits)
    shares_prefixes: bool = True
    shares_histories: bool = False
    loop: LoopOptions = field(default_factory=LoopOptions)
    stall_s: float = 300.0


def assemble(options: EngineOptions, tokenizer: TextTokenizer) -> tuple[EngineLoop, ModelInfo]:
    """Load the model and put a loop around it. Runs on the thread that will run the loop.

    Raises:
        ModelError: the checkpoint cannot be loaded, or the cache folder not be used.
    """
    # What can be refused is refused before anything is loaded.
    folder_claim = None if options.cache_dir is None else _claim(options.cache_dir)
    context_length = _context_length(read_config(options.model_path), options.context_length)
    device = detect()
    forward = load(
        options.model_path,
        adapter_path=options.adapter_path,
        dtype=options.dtype,
        kv_bits=options.kv_bits,
        hashes_file=options.hashes_file,
        device=device if options.kernels else without_kernels(device),
        on_progress=options.on_progress,
    )
    forward.warm_up()
    budget_bytes = options.memory_budget or default_budget(device, forward.n_weight_bytes)
    room = device.n_memory_bytes - forward.n_weight_bytes - budget_bytes
    forward.fit_parts(room)
    device.settle_memory(
        pool_bytes=room // 2, wired_bytes=forward.n_weight_bytes if options.wires_weights else 0
    )
    known = metadata(forward, tokenizer, context_length)
    store = Store(
        known,
        budget_bytes=budget_bytes,
        ring_limits=options.ring,
        share_prefixes=options.shares_prefixes,
        share_histories=options.shares_histories,
        clock=time.monotonic,
        new_state=forward.new_state,
        disk=None if folder_claim is None else disk_tier(options, known, forward, folder_claim),
        codec=StateCodec(forward.new_state),
    )
    loop = EngineLoop(
        forward,
        tokenizer,
        store,
        stop_ids=frozenset(forward.config.eos_token_ids) | frozenset(tokenizer.eos_ids),
        options=options.loop,
        is_short_of_memory=device.is_short_of_memory,
        grammars=_in_background(partial(GrammarTable, tokenizer, forward.config.vocab_size)),
    )
    info = ModelInfo(
        name=options.model_path.name,
        context_length=context_length,
        device=device.name,
        budget_bytes=budget_bytes,
        vocab_size=forward.config.vocab_size,
    )
    return loop, info


def _context_length(config: ModelConfig, asked: int | None) -> int:
    if asked is not None and asked > config.max_context:
        raise ModelError(
            f"a context of {asked} tokens is above the model's limit of {config.max_context}; only a "
            "config.json that stretches its positions (rope_scaling) allows more"
        )
    return asked or config.max_context


def default_budget(device: Device, n_weight_bytes: int) -> int:
    """Bytes for retained conversations: the device's share of what the machine can give, less the weights."""
    return max(int((device.n_memory_bytes - n_weight_bytes) * device.budget_share), LEAST_BUDGET)


def disk_tier(
    options: EngineOptions, metadata: CrossTurnPrefixMetadata, forward: Forward, folder_claim: Claim
) -> DiskTier:
    """What keeps conversations across restarts in the folder that ``folder_claim`` is for."""
    assert options.cache_dir is not None
    return DiskTier(
        folder_claim,
        max_bytes=options.cache_dir_bytes,
        metadata=metadata,
        codec=StateCodec(forward.new_state),
        clock=time.time,
    )


def _claim(folder: Path) -> Claim:
    try:
        return claim(folder)
    except OSError as error:
        raise ModelError(f"the cache folder {folder} cannot be used: {error}") from error


def _in_background(make: Callable[[], GrammarTable]) -> Callable[[], GrammarTable]:
    """Begin to make what takes a second or two for a large vocabulary, so that the first request with
    a grammar does not hold up the replies beside it; the result waits for it."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="grammars")
    future = executor.submit(make)
    executor.shutdown(wait=False)
    return future.result


def metadata(forward: Forward, tokenizer: TextTokenizer, context_length: int) -> CrossTurnPrefixMetadata:
    """All that must agree before a remembered state may be used."""
    config, fingerprint = forward.config, forward.fingerprint
    return CrossTurnPrefixMetadata(
        model_fingerprint=fingerprint.model,
        tokenizer_fingerprint=tokenizer.fingerprint,
        adapter_id=AdapterId(fingerprint.adapter),
        vocab_size=config.vocab_size,
        max_cache_len=context_length,
        kv_dtype=f"q{fingerprint.kv_bits}" if fingerprint.kv_bits else fingerprint.dtype,
        rope_theta=config.rope_theta,
        partial_rotary_factor=config.partial_rotary_factor,
        layer_types=config.layer_types,
        chat_template_version=tokenizer.template_fingerprint,
        device=detect().kind,
    )
