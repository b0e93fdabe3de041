"""Assembles a loop from options: loads the model, sizes the memory, and builds the store."""

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
from server.engine.admission import LoopOptions
from server.engine.loop import EngineLoop
from server.settings import Settings

LEAST_BUDGET_BYTES = 64 * 2**20
"""The smallest memory budget for conversations, however little memory there is."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engine loads and how much it may hold.

    Attributes:
        model_path: directory of the checkpoint.
        settings: the operator's options.
        loop: replaces the loop's part of ``settings``, for tests and benchmarks.
        hashes_file: caches the hash of the weights between starts; None for no cache.
        on_progress: called with how much of the weights is read.
    """

    model_path: Path
    settings: Settings = field(default_factory=Settings)
    loop: LoopOptions | None = None
    hashes_file: Path | None = None
    on_progress: Progress | None = None


def assemble(options: EngineOptions, tokenizer: TextTokenizer) -> tuple[EngineLoop, ModelInfo]:
    """Load the model and build a loop around it, on the thread that will run the loop.

    Raises:
        ModelError: the checkpoint cannot be loaded, or the cache folder cannot be used.
    """
    settings = options.settings
    # Whatever can be refused is refused before the model is loaded.
    if settings.mtp_path is not None and not settings.drafts:
        raise ModelError("--mtp-path names a head to draft with, and --no-drafts allows no drafts")
    folder_claim = None if settings.cache_dir is None else _claim(settings.cache_dir)
    context_length = _context_length(read_config(options.model_path), settings.context_length)
    device = detect()
    forward = _load(options, device)
    budget_bytes = _divide_memory(settings, device, forward)
    forward.warm_up()  # with parts of the size that this memory allows
    known = metadata(forward, tokenizer, context_length)
    disk = None if folder_claim is None else disk_tier(options, known, forward, folder_claim)
    loop = EngineLoop(
        forward,
        tokenizer,
        _store(settings, known, budget_bytes, forward, disk),
        stop_ids=frozenset(forward.config.eos_token_ids) | frozenset(tokenizer.eos_ids),
        options=options.loop or LoopOptions.of(settings),
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


def _load(options: EngineOptions, device: Device) -> Forward:
    settings = options.settings
    return load(
        options.model_path,
        adapter_path=settings.adapter_path,
        mtp_path=settings.mtp_path,
        has_mtp=settings.drafts,
        dtype=settings.dtype,
        kv_bits=settings.kv_bits,
        hashes_file=options.hashes_file,
        device=device if settings.kernels else without_kernels(device),
        on_progress=options.on_progress,
    )


def _divide_memory(settings: Settings, device: Device, forward: Forward) -> int:
    """Share the memory that the weights leave between conversations and arithmetic; returns the bytes for
    conversations."""
    budget_bytes = settings.memory_budget or default_budget(device, forward.n_weight_bytes)
    room = device.n_memory_bytes - forward.n_weight_bytes - budget_bytes
    forward.fit_parts(room)
    device.settle_memory(
        pool_bytes=room // 2, wired_bytes=forward.n_weight_bytes if settings.wire_weights else 0
    )
    return budget_bytes


def _store(
    settings: Settings,
    metadata: CrossTurnPrefixMetadata,
    budget_bytes: int,
    forward: Forward,
    disk: DiskTier | None,
) -> Store:
    return Store(
        metadata,
        budget_bytes=budget_bytes,
        ring_limits=RingLimits(max_bytes=settings.ring_bytes),
        share_prefixes=settings.share_prefixes,
        share_histories=settings.share_histories,
        clock=time.monotonic,
        new_state=forward.new_state,
        disk=disk,
        codec=StateCodec(forward.new_state, forward.fingerprint.mtp),
    )


def _context_length(config: ModelConfig, asked: int | None) -> int:
    if asked is not None and asked > config.max_context:
        raise ModelError(
            f"a context of {asked} tokens is above the model's limit of {config.max_context}; only a "
            "config.json that stretches its positions (rope_scaling) allows more"
        )
    return asked or config.max_context


def default_budget(device: Device, n_weight_bytes: int) -> int:
    """Bytes for retained conversations: a share, set by the device, of the memory that the weights leave."""
    return max(int((device.n_memory_bytes - n_weight_bytes) * device.budget_share), LEAST_BUDGET_BYTES)


def disk_tier(
    options: EngineOptions, metadata: CrossTurnPrefixMetadata, forward: Forward, folder_claim: Claim
) -> DiskTier:
    """The tier that keeps conversations across restarts, in the claimed cache folder."""
    assert options.settings.cache_dir is not None
    return DiskTier(
        folder_claim,
        max_bytes=options.settings.cache_dir_size,
        metadata=metadata,
        codec=StateCodec(forward.new_state, forward.fingerprint.mtp),
        clock=time.time,
    )


def _claim(folder: Path) -> Claim:
    try:
        return claim(folder)
    except OSError as error:
        raise ModelError(f"the cache folder {folder} cannot be used: {error}") from error


def _in_background(make: Callable[[], GrammarTable]) -> Callable[[], GrammarTable]:
    """Start ``make`` on a thread, and return a function that waits for its result. It takes a second or two
    for a large vocabulary, and the first request with a grammar should not hold up the replies beside it."""
    executor = ThreadPoolExecutor(1, thread_name_prefix="grammars")
    future = executor.submit(make)
    executor.shutdown(wait=False)
    return future.result


def metadata(forward: Forward, tokenizer: TextTokenizer, context_length: int) -> CrossTurnPrefixMetadata:
    """Everything that must match before a retained state may be used."""
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
