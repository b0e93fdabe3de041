"""Writes the reference of the multi-token prediction head with transformers' own ``MtpModel`` in torch.

Run by hand as ``scripts/goldens/write_goldens.py``. The head has no ids of its own: it is given the rows that
the model's last norm gave, and the ids that follow.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from scripts.goldens.write_goldens import OUT
from tests.fakes import tiny

N_TOKENS = 40
N_DRAFTED = 4


def main() -> None:
    """One file a shape: the ids, the model's rows, the head's logits, and a draft that was chained."""
    for name, shape in (("dense", tiny.DENSE), ("moe", tiny.MOE)):
        moe = shape.n_experts > 0
        config = (Qwen3_5MoeTextConfig if moe else Qwen3_5TextConfig)(**tiny.text_config(shape))
        config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
        model = (Qwen3_5MoeForCausalLM if moe else Qwen3_5ForCausalLM)(config).to(torch.float32).eval()
        arrays = {key: torch.from_numpy(w) for key, w in tiny.weights(shape).items()}
        if shape.tied:
            arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
        model.load_state_dict(arrays, strict=True)
        head = MtpModel(model, 1).to(torch.float32).eval()
        wanted = head.layers[0].state_dict()
        given = {_theirs(key): torch.from_numpy(w) for key, w in tiny.mtp_weights(shape).items()}
        assert wanted.keys() == given.keys(), wanted.keys() ^ given.keys()
        head.layers[0].load_state_dict(given, strict=True)
        ids = torch.from_numpy(np.random.default_rng(9).integers(0, shape.vocab, N_TOKENS))[None]
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state
            cache = MtpCache(config=head.config)
            positions = torch.arange(1, N_TOKENS)[None]
            rows = head.forward_layer(0, hidden[:, :-1], positions, cache, input_ids=ids[:, 1:])
            logits = head._project_to_logits(rows)[0]
            draft, last = [], rows[:, -1:]
            for i in range(N_DRAFTED):
                draft.append(int(head._project_to_logits(last)[0, -1].argmax()))
                position = torch.tensor([[N_TOKENS + i]])
                last = head.forward_layer(0, last, position, cache, input_ids=torch.tensor([[draft[-1]]]))
        np.savez_compressed(
            OUT / f"mtp_{name}.npz",
            ids=ids[0].numpy().astype(np.uint32),
            hidden=hidden[0].numpy(),
            logits=logits.numpy(),
            draft=np.array(draft, np.uint32),
        )
        print(f"{name}: logits {tuple(logits.shape)}, largest {logits.abs().max():.3f}, draft {draft}")


def _theirs(name: str) -> str:
    """transformers' name, inside its layer."""
    name = name.removeprefix("mtp.")
    for ours, theirs in (
        ("fc.", "eh_proj."),
        ("pre_fc_norm_embedding.", "enorm."),
        ("pre_fc_norm_hidden.", "hnorm."),
        ("norm.", "post_norm."),
        ("layers.0.", "mtp_block."),
    ):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise ValueError(name)


if __name__ == "__main__":
    main()
