"""DFlash against two independent implementations: the PyPI packages dflash and speculators."""

import pytest
import torch
from transformers import DynamicCache, Qwen3Config

from nsd.drafters import dflash
from nsd.drafters.base import Ask
from nsd.drafters.block_shape import spread_layers
from nsd.laws import Sampling
from tests.drafters_c import block_tools as tools
from tests.drafters_c.peers import peer

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def target():
    return tools.PlainTarget()


def ask(k, anchor, prompt):
    return Ask(k, anchor, prompt, [anchor], Sampling())


@pytest.mark.parametrize("nested_block", [False, True])
@torch.no_grad()
def test_zlab_block_logits_over_several_rounds_with_a_cache(target, tmp_path, nested_block):
    made = tools.zlab(nested_block=nested_block, seed=3)
    drafter = dflash.load(target, made.write(tmp_path))
    theirs = peer("dflash.model", "dflash").DFlashDraftModel(Qwen3Config(**made.config)).eval()
    theirs.load_state_dict(made.tensors)
    assert theirs.target_layer_ids == tools.LAYER_IDS
    assert (theirs.block_size, theirs.mask_token_id) == (6, 59)

    g = torch.Generator().manual_seed(1)
    taps = torch.randn(9, 3, tools.HIDDEN, generator=g)
    session = drafter.open([list(range(9))], taps, 40)
    cache, start, new = DynamicCache(config=theirs.config), 9, taps
    cache.activate_past_recording()
    for accepted in (2, 0, 5, 1):
        anchor = int(torch.randint(59, (1,), generator=g))
        ids = torch.tensor([[anchor] + [59] * 5])
        hidden = theirs(
            position_ids=torch.arange(start - len(new), start + 6)[None],
            noise_embedding=target.model.get_input_embeddings()(ids),
            target_hidden=new.flatten(1)[None],
            past_key_values=cache,
            use_cache=True,
        )
        cache.crop(start - cache.get_seq_length())
        logits = theirs.compute_logits(hidden[:, 1:], target.model.lm_head)[0]
        u = torch.rand(1, 5, generator=g, dtype=torch.float64)
        draft = session.propose([ask(5, anchor, list(range(start)))], u)
        torch.testing.assert_close(draft.q, torch.softmax(logits, -1), **CLOSE)
        new = torch.randn(accepted + 1, 3, tools.HIDDEN, generator=g)
        session.commit([list(range(accepted + 1))], new)
        start += accepted + 1
    assert session.cache.lengths == [start]


@torch.no_grad()
def test_zlab_layer_ids_are_read_as_the_package_reads_them(target, tmp_path):
    """Our taps hand the drafter exactly what the package's own extraction takes from transformers' hidden states."""
    drafter = dflash.load(target, tools.zlab().write(tmp_path))
    extract = peer("dflash.model", "dflash").extract_context_feature
    ids = torch.tensor([[5, 9, 2, 30]])
    states = target.model(ids, output_hidden_states=True).hidden_states
    _, scores = target.open(ids.tolist(), 4, drafter.taps)
    assert drafter.taps == (2, 4, 5)
    torch.testing.assert_close(scores.taps.flatten(1), extract(states, tools.LAYER_IDS)[0])


def test_default_layers_are_the_packages(target, tmp_path):
    build = peer("dflash.model", "dflash").build_target_layer_ids
    for layers, count in [(8, 3), (36, 5), (40, 5), (24, 1), (64, 6)]:
        assert spread_layers(layers, count) == build(layers, count)
    made = tools.zlab()
    made.config["dflash_config"].pop("target_layer_ids")
    drafter = dflash.load(target, made.write(tmp_path))
    assert drafter.taps == tuple(i + 1 for i in build(tools.TARGET_LAYERS, tools.DRAFT_LAYERS))


def speculators_model(made, name, config_name):
    models = peer("speculators.models", "speculators")
    config = getattr(models, config_name)(**made.config)
    config.transformer_layer_config._attn_implementation = "eager"
    model = getattr(models, name)(config).eval()
    lost, surplus = model.load_state_dict(made.tensors, strict=False)
    assert not surplus
    assert set(lost) <= {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    return model


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("from_anchor", [False, True])
@torch.no_grad()
def test_speculators_logits_of_anchored_blocks(target, tmp_path, reduced, from_anchor):
    made = tools.speculators("dflash", reduced=reduced, seed=5, sample_from_anchor=from_anchor)
    drafter = dflash.load(target, made.write(tmp_path))
    model = speculators_model(made, "DFlashDraftModel", "DFlashSpeculatorConfig")
    model.embed_tokens.weight.copy_(target.model.get_input_embeddings().weight)
    if not reduced:
        model.lm_head.weight.copy_(target.model.lm_head.weight)

    g = torch.Generator().manual_seed(2)
    ids = torch.randint(59, (1, 24), generator=g)
    taps = torch.randn(24, 3, tools.HIDDEN, generator=g)
    torch.manual_seed(0)
    _, logits, _, _, rows = model._backbone_forward(
        taps.flatten(1)[None], ids, torch.ones(1, 24), torch.zeros(1, 24, tools.HIDDEN),
        torch.zeros(1, 24, dtype=torch.long), max_anchors=6,
    )  # fmt: skip
    blocks, first = rows.view(6, 5)[:, 0].tolist(), 0 if from_anchor else 1
    assert len(set(blocks)) == 6 and max(blocks) >= 8
    prefixes = [ids[0, :n].tolist() for n in blocks]
    session = drafter.open(prefixes, torch.cat([taps[:n] for n in blocks]), 8)
    k = 5 - first
    draft = session.propose(
        [ask(k, int(ids[0, n]), p) for n, p in zip(blocks, prefixes, strict=True)], torch.rand(6, k)
    )
    theirs = logits.view(6, 5, -1)[:, first:]
    q = draft.q.view(6, k, -1)
    if reduced:
        whole = torch.zeros_like(q)
        whole[..., made.tensors["t2d"]] = torch.softmax(theirs, -1)
        torch.testing.assert_close(q, whole, **CLOSE)
        assert (q[..., ~made.tensors["t2d"]] == 0).all()
    else:
        torch.testing.assert_close(q, torch.softmax(theirs, -1), **CLOSE)


def test_speculators_stores_what_our_list_says():
    """Names and shapes that the package would save, from its own state dict and save rules."""
    for reduced in (False, True):
        made = tools.speculators("dflash", reduced=reduced)
        model = speculators_model(made, "DFlashDraftModel", "DFlashSpeculatorConfig")
        saved = {k: tuple(v.shape) for k, v in model.state_dict().items() if k not in model._keys_to_ignore_on_save}
        assert saved == {k: tuple(v.shape) for k, v in made.tensors.items()}
