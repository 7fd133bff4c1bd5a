"""Tiny random pairs in which the assistant is a cut copy of the model, so that some of its drafts stand."""

import torch
import transformers as tr

import nsd
from tests.targets.zoo import BASE, FAMILIES, model_of

CUSTOM = {"custom_generate": nsd.transformers.generate}
PADDED = torch.tensor([[0, 0, 5, 6, 7], [9, 10, 11, 12, 13], [0, 0, 0, 0, 21]])
MASK = (PADDED != 0).long()
PROMPT = torch.tensor([[5, 6, 7, 8, 9, 10]])


def llama(layers: int = 4, seed: int = 0, **changes):
    return model_of(tr.LlamaConfig(**{**BASE, "num_hidden_layers": layers, **changes}), seed)


def cut(model, layers: int):
    """A copy of a Llama-like model with its first layers only."""
    config = type(model.config).from_dict({**model.config.to_dict(), "num_hidden_layers": layers})
    config.layer_types = config.layer_types[:layers] if getattr(config, "layer_types", None) else None
    small = tr.AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    small.load_state_dict({k: v for k, v in model.state_dict().items() if k in small.state_dict()})
    small.generation_config = tr.GenerationConfig.from_model_config(config)
    return small.eval()


def pair_of(family: str):
    model = model_of(FAMILIES[family]())
    return model, model_of(FAMILIES[family](), seed=1)


def new(sequences, prompt):
    return sequences[:, prompt.shape[1] :].tolist()
