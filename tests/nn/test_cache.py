"""The ragged cache: any pattern of appended, kept and retained rows equals recomputation from scratch."""

import pytest
import torch

from nsd.nn import Decoder, DecoderConfig, Dense, LayerWeights, LowRank, Rope, Sight

CONFIG = DecoderConfig(
    hidden=20, layers=3, heads=6, kv_heads=3, head_dim=8, intermediate=28, qkv_bias=True, o_bias=True, mlp_bias=True,
    qk_norm=True, rope=Rope(theta=100.0, rotary=0.5), query_beta=0.3, query_context=4,
)  # fmt: skip


def layer(config: DecoderConfig, g: torch.Generator) -> LayerWeights:
    def normal(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64) * 0.3 + mean

    c = config
    return LayerWeights(
        attention_norm=normal(c.hidden, mean=0.8),
        mlp_norm=normal(c.hidden, mean=1.2),
        qkv=Dense(normal(c.q_size + 2 * c.kv_size, c.hidden * c.sources), normal(c.q_size + 2 * c.kv_size)),
        o=Dense(normal(c.hidden, c.heads * c.head_dim), normal(c.hidden)),
        gate_up=Dense(normal(2 * c.intermediate, c.hidden), normal(2 * c.intermediate)),
        down=Dense(normal(c.hidden, c.intermediate), normal(c.hidden)),
        q_norm=normal(c.head_dim, mean=1.5),
        k_norm=normal(c.head_dim, mean=0.7),
    )


def decoder(config: DecoderConfig = CONFIG, seed: int = 0) -> Decoder:
    g = torch.Generator().manual_seed(seed)
    layers = [layer(config, g) for _ in range(config.layers)]
    return Decoder(config, layers, torch.ones(config.hidden, dtype=torch.float64), torch.float64)


def scratch(net: Decoder, x: torch.Tensor) -> torch.Tensor:
    """One causal pass over one whole sequence [n, hidden]."""
    cache = net.cache(1, len(x))
    return net.run(x, cache.rows([len(x)]), cache)[0]


def randn(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(6))
def test_random_keep_patterns_in_a_ragged_batch(seed):
    net = decoder()
    g = torch.Generator().manual_seed(100 + seed)
    batch = 4
    cache = net.cache(batch, 3 if seed % 2 else 64)  # too little room: it has to grow
    kept = [randn(g, 0, CONFIG.hidden) for _ in range(batch)]
    for step in range(7):
        counts = torch.randint(0 if step else 1, 6, (len(kept),), generator=g).tolist()
        if sum(counts) == 0:
            counts[0] = 1
        new = [randn(g, count, CONFIG.hidden) for count in counts]
        rows = cache.rows(counts)
        out, _ = net.run(torch.cat(new), rows, cache)
        for b, part in enumerate(out.split(counts)):
            if counts[b]:
                whole = scratch(net, torch.cat((kept[b], new[b])))
                torch.testing.assert_close(part, whole[len(kept[b]) :], rtol=1e-9, atol=1e-9)
        cache.append(rows)
        keep = [int(torch.randint(0, count + 1, (1,), generator=g)) for count in counts]
        cache.keep(keep)
        kept = [torch.cat((old, more[:n])) for old, more, n in zip(kept, new, keep, strict=True)]
        assert cache.lengths == [len(k) for k in kept]
        if step == 3:
            cache.retain([0, 2, 3])
            kept = [kept[0], kept[2], kept[3]]


def test_requests_that_move_into_holes_go_on_as_if_alone():
    """Whoever ends, wherever it lay: even and uneven passes of the others give what each gives from scratch."""
    net = decoder()
    g = torch.Generator().manual_seed(5)
    cache = net.cache(7, 40)
    kept = [randn(g, 0, CONFIG.hidden) for _ in range(7)]
    leaving = [[0], [3, 1], [], [0, 2]]
    for step, (gone, even) in enumerate([(gone, even) for gone in leaving for even in (True, False)]):
        counts = [2 if even else (step + 2 * b) % 3 for b in range(len(kept))]
        new = [randn(g, count, CONFIG.hidden) for count in counts]
        rows = cache.rows(counts)
        out, _ = net.run(torch.cat(new), rows, cache)
        cache.append(rows)
        cache.keep_all()
        kept = [torch.cat((old, more)) for old, more in zip(kept, new, strict=True)]
        for part, whole, count in zip(out.split(counts), kept, counts, strict=True):
            if count:
                torch.testing.assert_close(part, scratch(net, whole)[-count:], rtol=1e-9, atol=1e-9)
        if not even:
            staying = [b for b in range(len(kept)) if b not in gone]
            cache.retain(staying)
            kept = [kept[b] for b in staying]
    for _ in range(2):  # all of one length, so that a pass is a rectangle
        longest = max(cache.lengths)
        counts = [longest + 1 - n for n in cache.lengths]
        new = [randn(g, count, CONFIG.hidden) for count in counts]
        rows = cache.rows(counts)
        out, _ = net.run(torch.cat(new), rows, cache)
        cache.append(rows)
        cache.keep_all()
        kept = [torch.cat((old, more)) for old, more in zip(kept, new, strict=True)]
        for part, whole, count in zip(out.split(counts), kept, counts, strict=True):
            torch.testing.assert_close(part, scratch(net, whole)[-count:], rtol=1e-9, atol=1e-9)
    assert rows.start is not None and rows.order is not None


def test_keep_counts_from_the_last_keep_over_several_passes():
    net = decoder()
    g = torch.Generator().manual_seed(2)
    x = randn(g, 6, CONFIG.hidden)
    cache = net.cache(2, 4)
    passes = [([2, 1], x[:3]), ([1, 0], x[3:4]), ([0, 2], x[4:6])]
    for counts, new in passes:
        rows = cache.rows(counts)
        net.run(new, rows, cache)
        cache.append(rows)
    assert cache.lengths == [3, 3]
    cache.keep([1, 2])
    assert cache.lengths == [1, 2]
    out, _ = net.run(x[[5, 0]], cache.rows([1, 1]), cache)
    torch.testing.assert_close(out[0], scratch(net, x[[0, 5]])[-1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out[1], scratch(net, x[[2, 4, 0]])[-1], rtol=1e-9, atol=1e-9)
    with pytest.raises(AssertionError):
        cache.keep([1, 0])


def test_a_block_pass_reads_the_cache_and_leaves_it_alone():
    net = decoder()
    g = torch.Generator().manual_seed(3)
    lengths, counts = [5, 2, 7], [3, 4, 2]
    prefix = [randn(g, n, CONFIG.hidden) for n in lengths]
    block = [randn(g, n, CONFIG.hidden) for n in counts]
    cache = net.cache(3, 20)
    rows = cache.rows(lengths)
    net.run(torch.cat(prefix), rows, cache)
    cache.append(rows)
    cache.keep_all()
    rows = cache.rows(counts, Sight.BLOCK)
    first, _ = net.run(torch.cat(block), rows, cache)
    assert cache.lengths == lengths
    # The same by a mask of any form: everyone sees everyone in the block.
    rows = cache.rows(counts, torch.ones(3, 4, 4, dtype=torch.bool))
    torch.testing.assert_close(net.run(torch.cat(block), rows, cache)[0], first, rtol=1e-12, atol=1e-12)
    # The same one request at a time, where no mask is needed.
    for b, part in enumerate(first.split(counts)):
        alone = net.cache(1, 20)
        rows = alone.rows([lengths[b]])
        net.run(prefix[b], rows, alone)
        alone.append(rows)
        rows = alone.rows([counts[b]], Sight.BLOCK)
        assert rows.mask is None
        torch.testing.assert_close(net.run(block[b], rows, alone)[0], part, rtol=1e-9, atol=1e-9)
    # A causal pass afterwards does not see what the block left behind.
    more = [randn(g, n, CONFIG.hidden) for n in (1, 1, 1)]
    out, _ = net.run(torch.cat(more), cache.rows([1, 1, 1]), cache)
    for b in range(3):
        torch.testing.assert_close(out[b], scratch(net, torch.cat((prefix[b], more[b])))[-1], rtol=1e-9, atol=1e-9)


def test_a_block_order_matters_only_through_positions():
    net = decoder()
    g = torch.Generator().manual_seed(4)
    x = randn(g, 4, CONFIG.hidden)
    cache = net.cache(1, 8)
    block = net.run(x, cache.rows([4], Sight.BLOCK), cache)[0]
    causal = net.run(x, cache.rows([4]), cache)[0]
    assert (block[:-1] - causal[:-1]).abs().max() > 1e-3, "a block row sees later rows"
    assert cache.lengths == [0]


def test_a_request_without_rows_in_a_block_pass_yields_no_rows_and_no_nan():
    net = decoder()
    g = torch.Generator().manual_seed(5)
    cache = net.cache(3, 8)
    out, _ = net.run(randn(g, 5, CONFIG.hidden), cache.rows([3, 0, 2], Sight.BLOCK), cache)
    assert out.shape == (5, CONFIG.hidden) and out.isfinite().all()


def test_a_tree_mask_equals_each_path_alone():
    """Rows 1 and 2 both follow row 0 and do not see each other; positions are those of the slots."""
    net = decoder()
    g = torch.Generator().manual_seed(6)
    x = randn(g, 3, CONFIG.hidden)
    sees = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool)
    cache = net.cache(1, 8)
    tree = net.run(x, cache.rows([3], sees), cache)[0]
    torch.testing.assert_close(tree[:2], scratch(net, x[:2]), rtol=1e-9, atol=1e-9)
    assert (tree[2] - scratch(net, x)[2]).abs().max() > 1e-3


def test_injected_context_equals_keys_of_the_context_alone():
    """Injecting features that are a layer's normed input gives that layer the keys it would have written itself."""
    config = DecoderConfig(hidden=20, layers=1, heads=6, kv_heads=3, head_dim=8, intermediate=28, qk_norm=True)
    net = decoder(config)
    g = torch.Generator().manual_seed(7)
    x = randn(g, 9, config.hidden)
    normed = x / (x.square().mean(-1, keepdim=True) + config.eps).sqrt() * net.layers[0].attention_norm
    cache = net.cache(2, 4)
    net.inject(normed[:7], cache.rows([4, 3]), cache)
    assert cache.lengths == [4, 3]
    out, _ = net.run(x[[4, 7]], cache.rows([1, 1]), cache)
    torch.testing.assert_close(out[0], scratch(net, x[:5])[-1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out[1], scratch(net, torch.cat((x[4:7], x[7:8])))[-1], rtol=1e-9, atol=1e-9)


def test_the_low_rank_addition_is_on_only_when_asked():
    net = decoder()
    g = torch.Generator().manual_seed(8)
    down, up = randn(g, 2, 48), randn(g, 20, 2)
    merged, extended = [], []
    for weights in net.layers:
        dense = Dense(weights.o.weight + 4.0 * up @ down, weights.o.bias)
        merged.append(LayerWeights(**{f: getattr(weights, f) for f in weights.__slots__} | {"o": dense}))
        extended.append(weights.with_extra(LowRank(down, up, 4.0)))
    x = randn(g, 5, CONFIG.hidden)
    plain, both = (Decoder(CONFIG, layers, net.norm, torch.float64) for layers in (merged, extended))
    cache = both.cache(1, 5)
    on = both.run(x, cache.rows([5]), cache, extra=True)[0]
    off = both.run(x, cache.rows([5]), cache)[0]
    torch.testing.assert_close(on, scratch(plain, x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(off, scratch(net, x), rtol=0, atol=0)
    assert both.parameters == net.parameters + 3 * (down.numel() + up.numel())


def test_shifted_positions():
    """shift=1 with one leading slot fewer: relative attention is the same, so only the query scale may differ."""
    config = DecoderConfig(hidden=20, layers=2, heads=6, kv_heads=3, head_dim=8, intermediate=28, qk_norm=True)
    net = decoder(config)
    x = randn(torch.Generator().manual_seed(9), 5, 20)
    cache = net.cache(1, 8)
    rows = cache.rows([5], shift=1)
    assert rows.position.tolist() == [1, 2, 3, 4, 5] and rows.slot.tolist() == [0, 1, 2, 3, 4]
    # Angles are float32, so equal differences of positions are equal to about seven digits.
    torch.testing.assert_close(net.run(x, rows, cache)[0], scratch(net, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normed_residual", [False, True])
def test_a_layer_with_two_sources(normed_residual):
    """EAGLE-3's layer written out by hand for one row, where attention returns the row's own value."""
    config = DecoderConfig(hidden=20, layers=1, heads=6, kv_heads=3, head_dim=8, intermediate=28, sources=2,
                           normed_residual=normed_residual)  # fmt: skip
    g = torch.Generator().manual_seed(10)
    w = layer(config, g)
    norm = randn(g, 20) + 2.0
    w = LayerWeights(**{f: getattr(w, f) for f in w.__slots__} | {"feature_norm": norm, "q_norm": None, "k_norm": None})
    net = Decoder(config, [w], None, torch.float64)
    feature, token = randn(g, 1, 20), randn(g, 1, 20)
    cache = net.cache(1, 1)
    out = net.run(feature, cache.rows([1]), cache, side=token)[0]

    def rms(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + config.eps).sqrt() * weight

    read = torch.cat((rms(token, w.attention_norm), rms(feature, norm)), -1)
    value = w.qkv(read)[:, -24:].view(3, 8).repeat_interleave(2, 0).reshape(1, -1)
    x = (rms(feature, norm) if normed_residual else feature) + w.o(value)
    gate, up = w.gate_up(rms(x, w.mlp_norm)).chunk(2, -1)
    x = x + w.down(torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(out, x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(net.normed(out), out)
