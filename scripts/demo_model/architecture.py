"""The demo model's shape, and a checkpoint of it with seeded random weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

N_LAYERS = 12


def make_config(token_ids: dict[str, int]) -> Qwen3_5TextConfig:
    """12 thin layers rather than 8 wide ones: copying and choosing a tool take steps, not width."""
    end_of_text, im_end = token_ids["<|endoftext|>"], token_ids["<|im_end|>"]
    return Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=N_LAYERS,
        layer_types=["full_attention" if i % 4 == 3 else "linear_attention" for i in range(N_LAYERS)],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
        eos_token_id=im_end,
        pad_token_id=end_of_text,
        bos_token_id=None,
    )


def make_model(config: Qwen3_5TextConfig, seed: int = 0) -> Qwen3_5ForCausalLM:
    """Seeded weights in float32. The library's own initial decay forgets within a token or two: here each
    head starts with a half-life between about 3 and 3,000 tokens."""
    torch.manual_seed(seed)
    model = Qwen3_5ForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(1.0, 8.0).log_()
            elif name.endswith("dt_bias"):
                step = torch.exp(torch.empty_like(parameter).uniform_(-8.0, -3.0))
                parameter.copy_(torch.log(torch.expm1(step)))
            elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.mul_((2 * config.num_hidden_layers) ** -0.5)
    return model


def save_checkpoint(model: Qwen3_5ForCausalLM, folder: Path) -> None:
    """bf16 safetensors and the two config files. The tokenizer and the template already lie in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    im_end, end_of_text = model.config.eos_token_id, model.config.pad_token_id
    model.to(torch.bfloat16).save_pretrained(folder)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    config.setdefault("full_attention_interval", 4)
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generation = {
        "do_sample": True,
        "eos_token_id": [im_end, end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 0.3,
        "top_k": 20,
        "top_p": 0.9,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
