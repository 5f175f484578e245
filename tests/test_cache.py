import pytest
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


def test_where_there_are_k_slots_the_first_ones_are_given_away_and_no_use_is_remembered():
    slot_block, block_slot = cache.empty_maps(1, 1, 3, 8)
    slot_block[0, 0, :2], block_slot[0, 0, [4, 3]] = torch.tensor([4, 3]).int(), torch.arange(2).int()
    out = step(torch.tensor([[[0, 1, -1]]]), 64, (slot_block, block_slot), 3)
    assert slot_block.tolist() == [[[1, 0, -1]]]  # the own block first, and not the empty slot
    assert block_slot.tolist() == [[[1, 0, -1, -1, -1, -1, -1, -1]]]
    assert out.slot_ids.tolist() == [[[1, 0, -1]]]
    assert (out.last_use == -1).all()


@given(seed=st.integers(0, 9999), extra=st.integers(0, 3), policy=st.sampled_from(["recent", "score"]))
def test_every_sequence_and_head_gets_its_own_blocks_in_its_own_slots(seed, extra, policy):
    random = torch.Generator().manual_seed(seed)
    rule, pairs, n_blocks, n_slots = Sparsity(4, init_blocks=0, local_blocks=0), (2, 3), 12, 4 + extra
    maps = cache.empty_maps(*pairs, n_slots, n_blocks)
    out = Selection.empty(*pairs, 4, n_slots, torch.device("cpu"))
    host = torch.arange(2 * 3 * n_blocks)  # run (b * H + h) * N + block
    slots = torch.full((2 * 3 * n_slots,), -1)
    for at in range(3, 9):
        positions = torch.tensor([at * 64, (at - 3) * 64 + 5])
        scores = torch.randint(0, 9, (*pairs, n_blocks), generator=random).float()
        ids = blocks.select_blocks(scores[:, :, None], positions[:, None], rule)[:, :, 0]
        cache.difference(ids, positions, *maps, 64, out, policy=policy, scores=scores)
        for src, dst in out.misses():
            slots[dst] = host[src]
        for b, h in ((b, h) for b in range(2) for h in range(3)):
            own, tail = int(positions[b]) // 64, int(out.tail_slot[b, h])
            slots[(b * 3 + h) * n_slots + tail] = (b * 3 + h) * n_blocks + own
            held = maps[0][b, h].tolist()
            found = slots.view(*pairs, n_slots)[b, h].tolist()
            assert found == [(b * 3 + h) * n_blocks + block if block >= 0 else -1 for block in held]
            assert maps[1][b, h].tolist() == [held.index(n) if n in held else -1 for n in range(n_blocks)]


def test_buffers_and_maps_begin_empty_in_the_types_that_kernels_take_whatever_the_default_device():
    with torch.device("meta"):
        maps = cache.empty_maps(2, 3, 5, 7, "cpu")
        made = Selection.empty(2, 3, 4, 5, torch.device("cpu"))
    assert [m.tolist() for m in maps] == [[[[-1] * 5] * 3] * 2, [[[-1] * 7] * 3] * 2]
    shapes = {
        "block_ids": (2, 3, 4), "slot_ids": (2, 3, 4), "tail_slot": (2, 3), "src": (24,), "dst": (24,),
        "count": (1,), "scratch": (2, 3, 5), "ticket": (1,), "last_use": (2, 3, 5),
    }  # fmt: skip
    for name, shape in shapes.items():
        found = getattr(made, name)
        assert found.shape == shape
        assert (found == (0 if name in ("count", "ticket") else -1)).all(), name
        assert found.dtype == (torch.int64 if name == "ticket" else torch.int32), name
    assert {m.dtype for m in maps} == {torch.int32}


def test_rotation_turns_pairs_of_the_two_halves_and_keeps_the_dtype():
    x = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(0)).half()
    angle = torch.rand(3, 1, 3, generator=torch.Generator().manual_seed(1))
    got = cache.rotate(x, angle.cos(), angle.sin())
    turned = torch.view_as_complex(torch.stack(x.float().chunk(2, -1), -1)) * torch.exp(1j * angle)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got, torch.cat([turned.real, turned.imag], -1).half(), rtol=1e-3, atol=1e-3)


def test_a_head_without_a_tail_slot_is_passed_over_and_the_host_gets_whole_blocks_only():
    def layer(host):
        slots, ring = torch.zeros(1, 3, 2, 2, 4, 2), torch.arange(24.0).view(1, 3, 4, 2)
        return LayerCache(
            slots, ring, torch.zeros(1, 3, 1, 2), torch.zeros(1, 3, 3, 2, 4, 2) if host else None
        )

    v, tail = torch.ones(1, 3, 2), torch.tensor([[1, -1, 0]])
    for host in (True, False):
        cached = layer(host)
        cache.store_token(v, torch.tensor([6]), tail, cached)  # row 2 of block 1
        for h, slot in ((0, 1), (2, 0)):
            assert cached.slots[0, h, slot, 0, 2].tolist() == cached.ring[0, h, 2].tolist()
            assert cached.slots[0, h, slot, 1, 2].tolist() == [1, 1]
        assert not cached.slots[0, 1].any()
        assert int((cached.slots != 0).any(-1).sum()) == 4
        assert not host or not cached.host.any()
        cache.store_token(v, torch.tensor([7]), tail, cached)  # its last row
        if host:
            assert torch.equal(cached.host[0, [0, 2], 1], cached.slots[0, [0, 2], [1, 0]])
            assert not cached.host[0, 1].any()
            assert not cached.host[0, :, [0, 2]].any()


@pytest.mark.parametrize(
    ("held", "scores", "given"),
    [
        ([0, -1, 4], [-5.0, 0, 0, 0, 0], 1),  # the empty slot, although block 0 is worth less than nothing
        ([0, 3, 4], [5.0, 0, 0, 1.0, 0], 1),  # the lower score
        ([0, 3, 4], [1.0, 0, 0, 5.0, 0], 0),
        ([3, 0, 4], [2.0, 0, 0, 2.0, 0], 0),  # the lower slot
    ],
)
def test_by_score_empty_slots_go_first_then_the_lowest_score_of_which_block_ever(held, scores, given):
    slot_block, block_slot = cache.empty_maps(1, 1, 3, 5)
    slot_block[0, 0] = torch.tensor(held)
    for slot, block in enumerate(held):
        if block >= 0:
            block_slot[0, 0, block] = slot
    out = Selection.empty(1, 1, 2, 3, torch.device("cpu"))
    asked = torch.tensor([[[1, 4]]]), torch.tensor([4 * 64]), slot_block, block_slot, 64, out
    cache.difference(*asked, policy="score", scores=torch.tensor([[scores]]))
    assert out.misses() == [(1, given)]
