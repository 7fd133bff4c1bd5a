"""The chain through a transformers model: real caches, ragged batches, roll-back."""

import pytest
import torch

from nsd.drafters.base import Ask
from nsd.drafters.draft_model import ModelDrafter
from nsd.laws import Purpose, Sampling, laws, uniforms

transformers = pytest.importorskip("transformers", reason="the transformers target needs it")
VOCAB = 40
PENALTIES = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.2)


class Letters:
    """A tokenizer of one character per id."""

    eos_token_id = None

    def encode(self, text):
        return [ord(c) - 48 for c in text]

    def decode(self, ids):
        return "".join(chr(48 + i) for i in ids)

    def chat(self, messages):
        return self.encode(messages[-1]["content"])

    def token_text(self, token):
        return chr(48 + token)


@pytest.fixture(scope="module")
def target():
    from nsd.targets.hf import HfTarget

    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
    )
    return HfTarget(transformers.LlamaForCausalLM(config).float(), Letters(), name="tiny")


def draft_uniforms(batch, k, block):
    requests = torch.arange(batch).unsqueeze(-1).numpy()
    return torch.from_numpy(uniforms(4, requests, torch.arange(k).numpy(), Purpose.DRAFT, block))


@torch.no_grad()
def from_scratch(target, asked, drafted):
    """Laws of a request's drafts from one plain forward of transformers without a cache."""
    ids = [*asked.prompt, *asked.output, *drafted[:-1]]
    logits = target.model(torch.tensor([ids]), use_cache=False).logits[0, -len(drafted) :]
    histories = [asked.history(drafted[:i]) for i in range(len(drafted))]
    return laws(logits, [asked.sampling] * len(drafted), histories)


def test_ragged_chains_equal_a_forward_from_scratch(target):
    prompts = [[5], [1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]
    samplings = [Sampling(), PENALTIES, Sampling(top_k=7)]
    outputs = [[1], [2], [3]]
    session = ModelDrafter(target, "tiny").open(prompts, None, 40)
    prefilled = session.positions
    assert prefilled == sum(map(len, prompts))
    plan = [
        ((3, 4, 1), (3, 0, 1)),
        ((2, 0, 4), (1, 0, 4)),
        ((4, 4, 4), (4, 4, 2)),
        ((1, 3, 0), (0, 3, 0)),
        ((2, 2, 2), (2, 1, 0)),
    ]
    unread = [1, 1, 1]
    for block, (ks, accepted) in enumerate(plan):
        if block == 4:
            session.retain([0, 2])
            ks, accepted = (ks[0], ks[2]), (accepted[0], accepted[2])
            prompts, outputs, samplings, unread = ([x[0], x[2]] for x in (prompts, outputs, samplings, unread))
        batch = range(len(ks))
        asks = [Ask(ks[b], outputs[b][-1], prompts[b], outputs[b], samplings[b]) for b in batch]
        before = session.positions
        draft = session.propose(asks, draft_uniforms(len(ks), 4, block))
        assert draft.lengths == ks
        assert session.positions - before <= sum(unread[b] + ks[b] - 1 for b in batch if ks[b])
        tokens = [part.tolist() for part in draft.tokens.split(list(ks))]
        for b, q in enumerate(draft.q.split(list(ks))):
            if ks[b]:
                torch.testing.assert_close(q, from_scratch(target, asks[b], tokens[b]), rtol=0, atol=1e-5)
                unread[b] = 0
        committed = [[*tokens[b][: accepted[b]], (7 * block + b) % VOCAB] for b in batch]
        session.commit(committed, None)
        outputs = [outputs[b] + committed[b] for b in batch]
        unread = [unread[b] + len(committed[b]) for b in batch]


def test_drafting_for_itself_q_is_p(target):
    prompt, output = [4, 4, 2], [6]
    session = ModelDrafter(target, "tiny").open([prompt], None, 20)
    draft = session.propose([Ask(4, 6, prompt, output, PENALTIES)], draft_uniforms(1, 4, 0))
    checking, _ = target.open([prompt], 20)
    drafted = draft.tokens.tolist()
    scores = checking.score([[6, *drafted]])
    asked = Ask(4, 6, prompt, output, PENALTIES)
    p = laws(scores.logits, [PENALTIES] * 5, [asked.history(drafted[:i]) for i in range(5)])
    torch.testing.assert_close(draft.q, p[:4], rtol=0, atol=1e-5)
