import torch
from hypothesis import given
from hypothesis import strategies as st

from sparda import blocks, cache
from sparda.cache import LayerCache, Selection
from sparda.spec import Sparsity


def step(ids, position, maps, n_slots, block_size=64):
    out = Selection.empty(1, 1, ids.shape[-1], n_slots, torch.device("cpu"))
    return cache.difference(ids, torch.tensor([position]), *maps, block_size, out)


@given(seed=st.integers(0, 99), extra=st.integers(0, 3), n_steps=st.integers(1, 6))
def test_after_any_steps_the_maps_are_inverse_and_hold_what_is_wanted(seed, extra, n_steps):
    random = torch.Generator().manual_seed(seed)
    rule, n_blocks = Sparsity(5, local_blocks=1), 20
    maps = cache.empty_maps(1, 1, 5 + extra, n_blocks)
    for _ in range(n_steps):
        position = int(torch.randint(0, n_blocks * 64, (1,), generator=random))
        scores = torch.randint(0, 3, (1, 1, 1, n_blocks), generator=random).float()
        ids = blocks.select_blocks(scores, torch.tensor([[position]]), rule)[:, :, 0]
        before = maps[0].clone()
        out = step(ids, position, maps, 5 + extra)
        wanted = ids[ids >= 0].tolist()
        held = maps[0][0, 0].tolist()
        assert set(wanted) <= set(held)
        assert [maps[1][0, 0, b] for b in wanted] == out.slot_ids[out.slot_ids >= 0].tolist()
        assert all(maps[1][0, 0, b] == s for s, b in enumerate(held) if b >= 0)
        kept = [s for s, b in enumerate(before[0, 0].tolist()) if b in wanted]
        assert all(held[s] == before[0, 0, s] for s in kept)  # resident blocks keep their slot
        assert position // 64 not in [src for src, _ in out.misses()]


@given(seed=st.integers(0, 9999), extra=st.integers(0, 6), policy=st.sampled_from(["recent", "score"]))
def test_slots_hold_what_the_map_names_and_recent_is_a_plain_lru(seed, extra, policy):
    random = torch.Generator().manual_seed(seed)
    rule, n_blocks, n_slots = Sparsity(5, local_blocks=1), 24, 5 + extra
    maps, out = (
        cache.empty_maps(1, 1, n_slots, n_blocks),
        Selection.empty(1, 1, 5, n_slots, torch.device("cpu")),
    )
    host, slots = torch.arange(n_blocks), torch.full((n_slots,), -1)
    lru: dict[int, int] = {}  # block -> step at which it was last wanted
    for position in range(6 * 64, 6 * 64 + 12 * 40, 40):
        scores = torch.randint(-3, 3, (1, 1, n_blocks), generator=random).float()
        ids = blocks.select_blocks(scores[:, :, None], torch.tensor([[position]]), rule)[:, :, 0]
        before = maps[0][0, 0].tolist()
        cache.difference(ids, torch.tensor([position]), *maps, 64, out, policy=policy, scores=scores)
        for src, dst in out.misses():
            slots[dst] = host[src]
        slots[out.tail_slot[0, 0]] = position // 64
        held = maps[0][0, 0].tolist()
        assert slots.tolist() == held
        lru |= dict.fromkeys(ids[ids >= 0].tolist(), position)
        gone = [block for block in before if block >= 0 and block not in held]
        left = [block for block in held if block >= 0 and block not in ids]
        assert not gone or -1 not in held  # none leaves while a slot is empty
        worth = lru.get if policy == "recent" else lambda block, now=scores: float(now[0, 0, block])
        assert extra == 0 or all(worth(a) <= worth(b) for a in gone for b in left)


def test_the_own_block_takes_the_first_free_slot_and_is_not_copied():
    maps = cache.empty_maps(1, 1, 3, 10)
    out = step(torch.tensor([[[2, 4, 6]]]), 6 * 64, maps, 3)
    assert maps[0].tolist() == [[[6, 2, 4]]]
    assert out.misses() == [(2, 1), (4, 2)]
    assert out.tail_slot.tolist() == [[0]]


def test_a_full_block_goes_to_the_host_and_a_full_window_is_averaged():
    rule = Sparsity(6, local_blocks=2, block_size=16)
    keys, values = torch.randn(2, 1, 64, 4), torch.randn(2, 1, 64, 4)
    layer = LayerCache(
        torch.zeros(2, 1, 1, 2, 16, 4), torch.zeros(2, 1, 32, 4), torch.zeros(2, 1, 3, 4),
        torch.zeros(2, 1, 4, 2, 16, 4),
    )  # fmt: skip
    for t in range(64):
        tail = torch.zeros(2, 1, dtype=torch.int32)
        cache.append(keys[:, :, t], values[:, :, t], torch.tensor([t, t]), tail, layer, rule)
    assert layer.host is not None
    assert torch.equal(layer.host[:, :, :, 0].flatten(2, 3), keys)
    assert torch.equal(layer.host[:, :, :, 1].flatten(2, 3), values)
    assert torch.allclose(layer.compressed, blocks.compress_keys(keys, rule), atol=1e-6)


def test_rotation_keeps_lengths_and_turns_by_the_angle():
    angle = torch.tensor([0.3, 1.2])
    x = torch.tensor([1.0, 0.0, 0.0, 2.0])
    y = cache.rotate(x, angle.cos(), angle.sin())
    assert torch.allclose(y[[0, 2]], torch.stack([angle[0].cos(), angle[0].sin()]))
    assert torch.allclose(y.norm(), x.norm())


def test_a_block_after_the_querys_own_leaves_first_whatever_its_score():
    slot_block, block_slot = cache.empty_maps(1, 1, 3, 8)
    slot_block[0, 0] = torch.tensor([1, 5, 3])
    block_slot[0, 0, [1, 5, 3]] = torch.arange(3).int()
    out = Selection.empty(1, 1, 2, 3, torch.device("cpu"))
    wanted, scores = torch.tensor([[[2, 3]]]), torch.arange(8.0)[None, None]  # of block 5: the best one held
    given = wanted, torch.tensor([3 * 64]), slot_block, block_slot, 64, out
    cache.difference(*given, policy="score", scores=scores)
    assert slot_block.tolist() == [[[1, 2, 3]]]
    assert out.misses() == [(2, 1)]
