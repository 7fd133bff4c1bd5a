"""A separate small language model as a drafter: a Llama or Qwen3 of transformers, trained to follow the target's law.

It reads tokens alone. Its law at a position does not depend on how deep in a draft that position is, so one depth is
trained, and every depth is examined. Embedding and head are its own, over the target's whole vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nsd.train.corpus import Batch, chain_mask
from nsd.train.student import Rows, Student

HEAD_DIMS = (64, 32, 16, 8, 4)


class ModelStudent(Student):
    """A transformers causal model; names are those of its parameters."""

    kind = "draft-model"

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.own: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self.names = tuple(self.own)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.own.values():
                if weight.dim() > 1:
                    weight.normal_(0.0, 0.02, generator=generator)

    def __getitem__(self, name: str) -> Tensor:
        return self.own[name]

    def map(self) -> Tensor | None:
        """Its head."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def lent(self, head: Tensor) -> Tensor:
        """Nothing."""
        return head[:, :0]

    def rows(self, batch: Batch, embedding: Tensor, depths: int, wanted: int, key: str | None) -> list[Rows]:
        """One pass; depth d of chain t is the law after x_t+d."""
        with self.products():
            states = self.model.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
        flat, found = states.float().flatten(0, 1), []
        for depth in range(1, depths + 1):
            at = chain_mask(batch.kinds, depth, wanted).flatten().nonzero().squeeze(-1)
            found.append(Rows(flat.new_zeros(len(at), 0), at, flat[at + depth]))
        return found


def model_config(text: Any, vocab: int, layers: int, width: int, eos: list[int]) -> Any:
    """A small relative of a target: text is the target's text configuration; Qwen3 for Qwen targets, else Llama."""
    from transformers import LlamaConfig, Qwen3Config

    make = Qwen3Config if str(text.model_type).startswith("qwen3") else LlamaConfig
    head_dim = next((size for size in HEAD_DIMS if width % size == 0 and width // size >= 2), width)
    heads = width // head_dim
    return make(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=-(-8 * width // 3 // 32) * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        head_dim=head_dim,
        max_position_embeddings=text.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos or None,
        pad_token_id=None,
    )
