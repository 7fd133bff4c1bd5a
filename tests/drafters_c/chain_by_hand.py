"""EAGLE-3 and MTP networks written anew without a cache, and rounds of drafting compared with them."""

from dataclasses import dataclass

import torch

from nsd.drafters.base import Ask
from nsd.laws import Sampling
from tests.drafters_c.block_tools import Made
from tests.drafters_c.chain_tools import DRAFT_VOCAB, VOCAB


@dataclass(frozen=True)
class Plain:
    """A decoder layer written anew: attention as one explicit causal sum, everything in float64."""

    heads: int = 6
    kv: int = 2
    dim: int = 10
    rotary: int = 10
    theta: float = 1e6
    plus: float = 0.0
    gated: bool = False

    def norm(self, x, weight):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (self.plus + weight.double())

    def turned(self, x):
        half, n = self.rotary // 2, len(x)
        angle = torch.arange(n).double()[:, None] / self.theta ** (torch.arange(half).double() / half)
        pairs = torch.complex(x[..., :half].contiguous(), x[..., half : 2 * half].contiguous())
        spun = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat((spun.real, spun.imag, x[..., 2 * half :]), -1)

    def layer(self, w, prefix, read, stream):
        """read [n, any] goes into attention, whose output is added to stream [n, hidden]."""

        def linear(name, x):
            y = x @ w[f"{prefix}{name}.weight"].double().T
            bias = w.get(f"{prefix}{name}.bias")
            return y if bias is None else y + bias.double()

        n = len(read)
        q, gate = linear("self_attn.q_proj", read).view(n, self.heads, -1), None
        if self.gated:
            q, gate = q[..., : self.dim], q[..., self.dim :].flatten(1)
        k, v = (linear(f"self_attn.{p}_proj", read).view(n, self.kv, self.dim) for p in "kv")
        if f"{prefix}self_attn.q_norm.weight" in w:
            q = self.norm(q, w[f"{prefix}self_attn.q_norm.weight"])
            k = self.norm(k, w[f"{prefix}self_attn.k_norm.weight"])
        q, k = self.turned(q), self.turned(k)
        k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.dim**0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v).flatten(1)
        if gate is not None:
            mixed = mixed * torch.sigmoid(gate)
        stream = stream + linear("self_attn.o_proj", mixed)
        read = self.norm(stream, w[f"{prefix}post_attention_layernorm.weight"])
        gate, up = linear("mlp.gate_proj", read), linear("mlp.up_proj", read)
        return stream + linear("mlp.down_proj", torch.nn.functional.silu(gate) * up)


def eagle_by_hand(made: Made, embedding, taps, ids, drafted):
    """q of the proposals `drafted` from target states [n, taps, hidden] and n + 1 committed ids: [k, VOCAB] float64.

    No cache: every step runs the whole sequence again.
    """
    w, config, plain = made.tensors, made.config, Plain()
    first = "midlayer." if "midlayer.hidden_norm.weight" in w else "layers.0."
    depth = sum(name.endswith("q_proj.weight") for name in w)
    table = w.get("embed_tokens.weight", embedding).double()
    taps = taps.double()
    if config.get("fc_norm"):
        taps = torch.stack([plain.norm(taps[:, i], w[f"fc_norm.{i}.weight"]) for i in range(taps.shape[1])], 1)
    wide = taps.flatten(1)
    if config.get("norm_before_fc"):
        wide = plain.norm(wide, w["input_norm.weight"])
    features, tokens, laws = wide @ w["fc.weight"].double().T, list(ids[1:]), []
    for token in drafted:
        side = plain.norm(table[tokens], w[f"{first}input_layernorm.weight"])
        normed = plain.norm(features, w[f"{first}hidden_norm.weight"])
        stream = normed if config.get("norm_before_residual") else features
        stream = plain.layer(w, first, torch.cat((side, normed), -1), stream)
        for i in range(1, depth):
            stream = plain.layer(w, f"layers.{i}.", plain.norm(stream, w[f"layers.{i}.input_layernorm.weight"]), stream)
        out = plain.norm(stream[-1:], w["norm.weight"])
        laws.append(torch.softmax(out @ w["lm_head.weight"].double().T, -1)[0])
        features = torch.cat((features, out if config.get("norm_output") else stream[-1:]))
        tokens.append(token)
    q = torch.stack(laws)
    if "d2t" not in w:
        return q
    whole = torch.zeros(len(q), VOCAB, dtype=torch.float64)
    whole[:, torch.arange(DRAFT_VOCAB) + w["d2t"]] = q
    return whole


QWEN = Plain(dim=16, rotary=8, theta=10000.0, plus=1.0, gated=True)
DENSE = Plain(theta=640000.0)


def mtp_by_hand(made: Made, plain: Plain, names, embedding, head, states, ids, drafted, state_first=False):
    """q of the proposals `drafted` from final states [n, hidden] and the n + 1 committed ids: [k, VOCAB] float64.

    names: layer prefix, then the names of fc and of the state, token and final norms.
    """
    layer, fuse, state_norm, token_norm, final = names
    w, features, tokens, laws = made.tensors, states.double(), list(ids[1:]), []
    for token in drafted:
        state = plain.norm(features, w[state_norm])
        word = plain.norm(embedding.double()[tokens], w[token_norm])
        x = torch.cat((state, word) if state_first else (word, state), -1) @ w[fuse].double().T
        x = plain.layer(w, layer, plain.norm(x, w[f"{layer}input_layernorm.weight"]), x)
        out = plain.norm(x[-1:], w[final])
        laws.append(torch.softmax(out @ head.double().T, -1)[0])
        features = torch.cat((features, out))
        tokens.append(token)
    return torch.stack(laws)


def run_rounds(drafter, width: int, by_hand, most: int, seed: int = 11, rounds: int = 5):
    """Rounds of propose and commit in a ragged batch, q compared with by_hand(taps, ids, drafted) at every block.

    The target's states are random rows: a drafter cannot know where they came from. Requests want different k, one of
    them none at all; any number of drafts is accepted; some requests leave.
    """
    g = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=g))

    def states(n):
        return torch.randn(n, len(drafter.taps), width, generator=g)

    texts = [[number(0, VOCAB) for _ in range(n)] for n in (5, 1, 9, 3)]
    prompts = [list(text) for text in texts]
    known = [states(len(text)) for text in texts]
    session = drafter.open(prompts, torch.cat(known), 4)  # less room than needed: the cache has to grow
    true, fed, drafts_fed = [0] * 4, 0, 0
    for text in texts:
        text.append(number(0, VOCAB))
    for step in range(rounds):
        ks = [most - (b + step) % 3 if (b + step) % 4 else 0 for b in range(len(texts))]
        asks = [Ask(k, t[-1], p, t[len(p) :], Sampling()) for k, t, p in zip(ks, texts, prompts, strict=True)]
        draft = session.propose(asks, torch.rand(len(ks), max(ks), generator=g, dtype=torch.float64))
        assert draft.lengths == tuple(ks)
        at = 0
        for b, k in enumerate(ks):
            if k:
                mine = by_hand(known[b], texts[b], draft.tokens[at : at + k].tolist())
                torch.testing.assert_close(draft.q[at : at + k].double(), mine, rtol=1e-5, atol=1e-5)
                fed += len(known[b]) - true[b]
                drafts_fed += k - 1
                true[b] = len(known[b])
            at += k
        # The cache holds true features of committed tokens, nothing of the draft.
        assert session.cache.lengths == true
        assert session.positions == fed + drafts_fed
        committed = [[number(0, VOCAB) for _ in range(number(0, k + 1) + 1)] for k in ks]
        new = [states(len(ids)) for ids in committed]
        session.commit(committed, torch.cat(new))
        for b, ids in enumerate(committed):
            texts[b].extend(ids)
            known[b] = torch.cat((known[b], new[b]))
        if step == 2:
            session.retain([0, 2, 3])
            texts, prompts, known, true = ([x[b] for b in (0, 2, 3)] for x in (texts, prompts, known, true))
