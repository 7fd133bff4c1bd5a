"""Nemotron-Labs-Diffusion as a target: one dense decoder that reads causally here and drafts in `drafters/nemotron.py`.

A pre-norm decoder with grouped-query attention, YaRN positions, the Llama-4 query scale, an untied head, no biases. The
mask id is a blank to fill in, never text: it counts as an absent id, so it has probability 0 in every law made from
this target, in plain decoding too, unless it is kept on purpose.

Source: nvidia/Nemotron-Labs-Diffusion-8B modeling_nemotron_labs_diffusion.py, configuration_nemotron_labs_diffusion.py
(tensor names, config keys, causal reading).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.errors import ModelError
from nsd.nn import Decoder, DecoderConfig, Dense, Shapes, decoder_config, layer_shapes, layer_weights
from nsd.nn.checkpoint import Checkpoint, open_checkpoint, read_json, required
from nsd.targets.base import Tokenizer
from nsd.targets.dtypes import choose_device, choose_dtype
from nsd.targets.lean import LeanTarget, ids_of
from nsd.targets.recognise import is_nemotron

recognises = is_nemotron


@dataclass(frozen=True, slots=True)
class NemotronConfig:
    """A parsed config.json: vocab ids, of which mask is the blank; block tokens that a draft was trained on.

    The block counts its anchor. bidirectional is False for training stages whose block cannot be drafted in one pass;
    context is the longest sequence.
    """

    decoder: DecoderConfig
    vocab: int
    mask: int
    block: int
    bidirectional: bool
    context: int
    eos: frozenset[int]

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> NemotronConfig:
        """Read and check. Raises ModelError for missing keys, a mask id outside the vocabulary, a block of one."""
        vocab, mask, block = (required(config, key, where) for key in ("vocab_size", "mask_token_id", "block_size"))
        if not 0 <= mask < vocab:
            raise ModelError(f"{where}: mask_token_id is {mask}, wanted an id in 0..{vocab - 1}; check the config")
        if block < 2:
            raise ModelError(f"{where}: block_size is {block}, wanted an anchor and at least one mask (>= 2)")
        if config.get("tie_word_embeddings"):
            raise ModelError(f"{where}: tied embeddings, wanted a head of its own (diffusion_head); not supported")
        return cls(
            decoder=decoder_config(config, where),
            vocab=vocab,
            mask=mask,
            block=block,
            bidirectional=config.get("dlm_paradigm", "bidirectional") == "bidirectional",
            context=config.get("max_position_embeddings") or 2**31 - 1,
            eos=ids_of(config.get("eos_token_id")),
        )

    @property
    def shapes(self) -> Shapes:
        """Names and shapes of all tensors of the checkpoint."""
        ends: Shapes = {
            "encoder.embed_tokens.weight": (self.vocab, self.decoder.hidden),
            "encoder.norm.weight": (self.decoder.hidden,),
            "diffusion_head.weight": (self.vocab, self.decoder.hidden),
        }
        for layer in range(self.decoder.layers):
            ends |= layer_shapes(self.decoder, f"encoder.layers.{layer}.")
        return ends


class NemotronTarget(LeanTarget):
    """The loaded model; its drafter uses decoder, embedding and head too.

    keep_mask_id leaves the mask id among the ids that can be drawn, as the released generation code does.
    """

    def __init__(
        self,
        config: NemotronConfig,
        tensors: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        name: str,
        dtype_reason: str = "as loaded",
        keep_mask_id: bool = False,
        folder: Path | None = None,
    ) -> None:
        layers = [layer_weights(config.decoder, tensors, f"encoder.layers.{i}.") for i in range(config.decoder.layers)]
        embedding, head = Dense(tensors["encoder.embed_tokens.weight"]), Dense(tensors["diffusion_head.weight"])
        decoder = Decoder(config.decoder, layers, tensors["encoder.norm.weight"], embedding.weight.dtype)
        eos = config.eos | ids_of(getattr(tokenizer, "eos_token_id", None))
        super().__init__(
            decoder, embedding, head, tokenizer, name, config.vocab, config.context, eos,
            dtype_reason=dtype_reason, folder=folder,
        )  # fmt: skip
        self.config, self.keep_mask_id = config, keep_mask_id
        absent = torch.zeros(self.vocab, dtype=torch.bool) if self.absent is None else self.absent.cpu()
        absent[config.mask] = not keep_mask_id
        self.absent = absent.to(self.device) if absent.any() else None

    def reference(self) -> Any | None:
        """None: transformers itself does not have this model."""
        return None


def load(
    source: str,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    tokenizer: Tokenizer | None = None,
    keep_mask_id: bool = False,
) -> NemotronTarget:
    """Load a folder or hub name: safetensors and the tokenizer's own files, no code of the checkpoint."""
    checkpoint = open_checkpoint(source, revision=revision)
    config = NemotronConfig.of(checkpoint.config, checkpoint.where)
    where = choose_device(device)
    chosen, reason = choose_dtype(dtype, where)
    if tokenizer is None:
        tokenizer = _tokenizer(checkpoint)
    tensors = checkpoint.load(config.shapes, where, chosen)
    generation = _generation(checkpoint.folder)
    config = replace(config, eos=config.eos | ids_of(generation.get("eos_token_id")))
    target = NemotronTarget(config, tensors, tokenizer, source, reason, keep_mask_id, checkpoint.folder)
    target.default_temperature = float(generation.get("temperature") or 1.0)
    return target


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The fast tokenizer beside the weights. AutoTokenizer would ask the config for a class, and that one is code."""
    from transformers import PreTrainedTokenizerFast

    from nsd.targets.tokenizer import HfTokenizer

    try:
        return HfTokenizer(PreTrainedTokenizerFast.from_pretrained(str(checkpoint.folder)))
    except (OSError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"{checkpoint.folder} has no readable tokenizer ({reason}), wanted tokenizer.json") from None


def _generation(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json(path, "generation settings") if path.is_file() else {}
