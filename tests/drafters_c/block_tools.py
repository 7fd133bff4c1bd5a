"""Tiny targets and tiny random checkpoints of block drafters, in every layout, for the tests in this folder.

Key names, shapes and config keys are written out from what the layouts' own authors store, not from our exporter (there
is none). Sizes are distinct and nothing is square, norms are not 1.
"""

import json
from dataclasses import dataclass

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from nsd.targets.base import FINAL_NORM, Scores, Target, TargetSession

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 36, 6, 2, 10, 52, 61
DRAFT_LAYERS, TARGET_LAYERS, DRAFT_VOCAB, RANK = 3, 8, 23, 7
LAYER_IDS = [1, 3, 4]


class PlainTarget(Target):
    """A tiny transformers model without any cache: every pass runs the whole sequences again, equal ones once."""

    def __init__(self, vocab: int = VOCAB, hidden: int = HIDDEN, layers: int = TARGET_LAYERS, seed: int = 0) -> None:
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, intermediate_size=40, tie_word_embeddings=False, pad_token_id=None,
        )  # fmt: skip
        self.model = Qwen3ForCausalLM(config).eval().requires_grad_(False)
        for name, parameter in self.model.named_parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.25 if "head" not in name else 0.6)
        self.name, self.vocab, self.hidden, self.layers, self.context = "plain", vocab, hidden, layers, 4096
        self.eos, self.absent = frozenset({0}), None
        self.device, self.dtype, self.dtype_reason = torch.device("cpu"), torch.float32, "test"
        self.default_temperature = 1.0

    def open(self, prompts, room, taps=()):
        session = PlainSession(self, [list(p) for p in prompts], tuple(taps))
        logits, tapped = session.run([list(p) for p in prompts])
        ends = torch.tensor([len(p) for p in prompts]).cumsum(0) - 1
        return session, Scores(logits[ends], tapped)

    def states(self, sequences, taps):
        """Logits and taps at every position of every sequence, one after the other."""
        width = max(map(len, sequences))
        padded = torch.tensor([s + [0] * (width - len(s)) for s in sequences])
        ids, copy = padded.unique(dim=0, return_inverse=True)
        with torch.no_grad():
            out = self.model(ids, output_hidden_states=True, use_cache=False)
        live = torch.arange(width) < torch.tensor([len(s) for s in sequences])[:, None]
        # transformers gives the last state after the final norm; no test reads the one before it.
        at = [out.hidden_states[-1] if tap == FINAL_NORM else out.hidden_states[tap] for tap in taps]
        return out.logits[copy][live], torch.stack(at, -2)[copy][live] if taps else None


class PlainSession(TargetSession):
    """The committed ids of a batch."""

    def __init__(self, target: PlainTarget, ids, taps) -> None:
        self.target, self.ids, self.taps, self.fed = target, ids, taps, [[] for _ in ids]

    def run(self, sequences):
        return self.target.states(sequences, self.taps)

    def score(self, inputs):
        whole = [old + list(new) for old, new in zip(self.ids, inputs, strict=True)]
        logits, tapped = self.run(whole)
        new = [i >= len(old) for old, seq in zip(self.ids, whole, strict=True) for i in range(len(seq))]
        self.fed = [list(x) for x in inputs]
        return Scores(logits[torch.tensor(new)], None if tapped is None else tapped[torch.tensor(new)])

    def keep(self, counts):
        self.ids = [old + new[:n] for old, new, n in zip(self.ids, self.fed, counts, strict=True)]

    def retain(self, requests):
        self.ids = [self.ids[b] for b in requests]


@dataclass(frozen=True)
class Made:
    """A checkpoint as written: its config and tensors."""

    config: dict
    tensors: dict

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file({k: v.contiguous() for k, v in self.tensors.items()}, str(folder / "model.safetensors"))
        return folder


def backbone_keys(layers: int = DRAFT_LAYERS, hidden: int = HIDDEN, taps: int = 3) -> dict[str, tuple[int, ...]]:
    """z-lab's tensors; all other layouts have these too."""
    keys: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(layers):
        keys |= {
            f"layers.{i}.input_layernorm.weight": (hidden,),
            f"layers.{i}.post_attention_layernorm.weight": (hidden,),
            f"layers.{i}.self_attn.q_proj.weight": (60, hidden),
            f"layers.{i}.self_attn.k_proj.weight": (20, hidden),
            f"layers.{i}.self_attn.v_proj.weight": (20, hidden),
            f"layers.{i}.self_attn.o_proj.weight": (hidden, 60),
            f"layers.{i}.self_attn.q_norm.weight": (10,),
            f"layers.{i}.self_attn.k_norm.weight": (10,),
            f"layers.{i}.mlp.gate_proj.weight": (52, hidden),
            f"layers.{i}.mlp.up_proj.weight": (52, hidden),
            f"layers.{i}.mlp.down_proj.weight": (hidden, 52),
        }
    return keys


def own_ends(vocab: int = VOCAB, hidden: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    """DeepSpec's copies of embedding and head."""
    return {"embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}


def markov_keys(kind: str, vocab: int = VOCAB, draft_vocab: int | None = None, hidden: int = HIDDEN):
    """DeepSpec's sequential and confidence heads."""
    keys: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (vocab, 7),
        "markov_head.markov_w2.weight": (draft_vocab or vocab, 7),
        "confidence_head.proj.weight": (1, hidden + 7),
        "confidence_head.proj.bias": (1,),
    }
    if kind == "gated":
        keys |= {"markov_head.gate_proj.weight": (7, hidden + 7), "markov_head.gate_proj.bias": (7,)}
    if kind == "rnn":
        keys |= {"markov_head.joint_proj.weight": (21, 14 + hidden), "markov_head.joint_proj.bias": (21,)}
    return keys


def filled(keys, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors: norms around 1, maps scaled by their width, tables and biases of order 1."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in keys.items():
        if name in ("d2t", "t2d"):
            continue
        noise = torch.randn(shape, generator=g)
        if "norm" in name:
            tensors[name] = 1 + 0.3 * noise
        elif len(shape) == 1 or "embed" in name or "w1" in name:
            tensors[name] = noise
        else:
            tensors[name] = noise * (1.3 / shape[-1] ** 0.5) * (2.0 if "head" in name else 1.0)
    return tensors


def qwen3_keys(
    vocab: int = VOCAB, hidden: int = HIDDEN, layers: int = DRAFT_LAYERS, target_layers=TARGET_LAYERS
) -> dict:
    """Config keys that the z-lab and DeepSpec layouts share with Qwen3."""
    return {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INNER,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "attention_bias": False,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "layer_types": ["full_attention"] * layers,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "use_sliding_window": False,
        "num_target_layers": target_layers,
    }


def zlab(block: int = 6, seed: int = 0, nested_block: bool = False, **extra) -> Made:
    """z-lab's DFlash; newer checkpoints nest block_size."""
    inner = {"mask_token_id": 59, "target_layer_ids": LAYER_IDS}
    config = {
        **qwen3_keys(),
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "dflash_config": inner | ({"block_size": block} if nested_block else {}),
    }
    if not nested_block:
        config["block_size"] = block
    return Made(config | extra, filled(backbone_keys(), seed))


def deepspec(kind: str | None = "vanilla", block: int = 5, seed: int = 0, **extra) -> Made:
    """DeepSpec's DSpark, or with kind None its DFlash: the same class with markov_rank 0."""
    config = {
        **qwen3_keys(),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": block,
        "mask_token_id": 59,
        "target_layer_ids": LAYER_IDS,
        "num_anchors": 512,
        "enable_confidence_head": kind is not None,
        "confidence_head_with_markov": kind is not None,
        "markov_rank": RANK if kind else 0,
        "markov_head_type": kind or "vanilla",
    }
    keys = backbone_keys() | own_ends() | (markov_keys(kind) if kind else {})
    return Made(config | extra, filled(keys, seed))


def nested(kind: str = "vanilla", block: int = 5, seed: int = 0, **extra) -> Made:
    """The DSpark layout of SpecForge and SGLang: settings nested, no embedding and head of its own."""
    config = {
        **qwen3_keys(),
        "architectures": ["DSparkDraftModel"],
        "block_size": block,
        "dflash_config": {
            "mask_token_id": 59,
            "target_layer_ids": LAYER_IDS,
            "projector_type": "dspark",
            "markov_rank": RANK,
            "markov_head_type": kind,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
    }
    return Made(config | extra, filled(backbone_keys() | markov_keys(kind), seed))


def speculators(
    algorithm: str, kind: str = "vanilla", block: int = 5, seed: int = 0, reduced: bool = False, **extra
) -> Made:
    """speculators' layout: layer settings one level down and without Qwen3's defaults, ids that already are taps."""
    full = qwen3_keys()
    defaults = Qwen3Config().to_dict()
    diff = {k: v for k, v in full.items() if k != "num_target_layers" and (k == "model_type" or defaults.get(k) != v)}
    draft_vocab = DRAFT_VOCAB if reduced else VOCAB
    config = {
        "architectures": ["DSparkSpeculator" if algorithm == "dspark" else "DFlashSpeculator"],
        "speculators_model_type": algorithm,
        "speculators_version": "0.9.0",
        "transformer_layer_config": diff,
        "draft_vocab_size": draft_vocab,
        "block_size": block,
        "target_hidden_size": None,
        "aux_hidden_state_layer_ids": [i + 1 for i in LAYER_IDS],
        "mask_token_id": 59,
        "sliding_window_non_causal": False,
        "sample_from_anchor": algorithm == "dspark",
    }
    keys = backbone_keys()
    if algorithm == "dspark":
        config |= {"markov_rank": RANK, "markov_head_type": kind, "enable_confidence_head": True,
                   "confidence_head_with_markov": True}  # fmt: skip
        keys |= markov_keys(kind, VOCAB, draft_vocab)
    if reduced:
        keys["lm_head.weight"] = (draft_vocab, HIDDEN)
    tensors = filled(keys, seed)
    if reduced:
        ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).scatter(0, ids, True)
    return Made(config | extra, tensors)


def plain_block(made: Made, taps, anchor: int, embed, block: int, mask: int = 59, theta: float = 1e6):
    """States of a block over a context of target states [n, taps, hidden], without any cache -> [block, hidden].

    Written anew from the description: attention as one explicit sum over context and block.
    """
    w = made.tensors
    layers = sum(name.endswith("q_proj.weight") for name in w)

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def turned(x, positions):
        half = x.shape[-1] // 2
        angle = positions[:, None].double() / theta ** (torch.arange(half).double() / half)
        pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
        spun = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat((spun.real, spun.imag), -1).float()

    context = norm(taps.flatten(1) @ w["fc.weight"].T, w["hidden_norm.weight"])
    n = len(context)
    positions = torch.arange(n + block)
    x = embed(torch.tensor([anchor] + [mask] * (block - 1)))
    for i in range(layers):
        p = f"layers.{i}."
        read = norm(x, w[p + "input_layernorm.weight"])
        both = torch.cat((context, read))
        q = (read @ w[p + "self_attn.q_proj.weight"].T).view(block, HEADS, HEAD_DIM)
        k = (both @ w[p + "self_attn.k_proj.weight"].T).view(n + block, KV_HEADS, HEAD_DIM)
        v = (both @ w[p + "self_attn.v_proj.weight"].T).view(n + block, KV_HEADS, HEAD_DIM)
        q = turned(norm(q, w[p + "self_attn.q_norm.weight"]), positions[n:])
        k = turned(norm(k, w[p + "self_attn.k_norm.weight"]), positions)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        weights = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5, -1)
        x = x + torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ w[p + "self_attn.o_proj.weight"].T
        read = norm(x, w[p + "post_attention_layernorm.weight"])
        gate, up = read @ w[p + "mlp.gate_proj.weight"].T, read @ w[p + "mlp.up_proj.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"])
