"""Where a prompt lies after it was read, what a place of the batch forgets, and what ``fill`` leaves."""

import pytest
import torch

from sparda import blocks
from sparda.plan import HostPool, Plan
from sparda.spec import Sparsity
from sparda.store import Store

RULE = Sparsity(5, local_blocks=1, block_size=16)
LAYERS, HEADS, DIM, LONGEST = 3, 2, 4, 200  # 13 blocks


def made(**options):
    store = Store(Plan(2, LONGEST, LAYERS, HEADS, DIM, RULE, **options))
    for state in store.layers:
        for tensor in (state.cache.slots, state.cache.host):
            if tensor is not None:
                tensor.fill_(torch.nan)
    return store


def prompt(n_tokens, seed=0):
    """Keys and values, [H, T, d] each."""
    return torch.randn(2, HEADS, n_tokens, DIM, generator=torch.Generator().manual_seed(seed))


def rows(store, n_tokens):
    """The first tokens of host blocks [H, N, 2, S, d]: keys and values, [2, H, T, d]."""
    return store.transpose(1, 2).flatten(2, 3).transpose(0, 1)[:, :, :n_tokens]


def inverse(state):
    """block_slot says of each block in which slot it lies, or -1, as slot_block has it."""
    n_blocks = state.block_slot.shape[2]
    held = state.slot_block.flatten(0, 1).tolist()
    want = [[row.index(n) if n in row else -1 for n in range(n_blocks)] for row in held]
    return state.block_slot.flatten(0, 1).tolist() == want


@pytest.mark.parametrize("n_tokens", [1, 16, 31, 33, 64, 150])
def test_a_prompts_blocks_lie_in_the_host_and_the_unfinished_one_in_slot_0(n_tokens):
    store, given = made(), prompt(n_tokens)
    store.load_prompt(1, 1, *given)
    state = store.layers[1]
    assert torch.equal(rows(state.cache.host[1], n_tokens), given)
    assert state.cache.host[0].isnan().all()  # the other sequence's
    held, tail = state.slot_block[1].tolist(), n_tokens // 16
    if n_tokens % 16 == 0:  # no block is unfinished
        assert held == [[-1] * 5] * HEADS
        assert state.cache.slots.isnan().all()
    else:
        assert held == [[tail, -1, -1, -1, -1]] * HEADS
        found = state.cache.slots[1, :, 0, :, : n_tokens % 16].transpose(0, 1)  # [2, H, t, d]
        assert torch.equal(found, given[:, :, 16 * tail :])
    assert inverse(state)
    assert (state.slot_block[0] == -1).all()


@pytest.mark.parametrize("n_tokens", [5, 32, 75])
def test_the_ring_holds_the_last_window_of_keys_by_position(n_tokens):
    store, (keys, values) = made(), prompt(n_tokens)
    store.load_prompt(2, 0, keys, values)
    ring = store.layers[2].cache.ring
    for t in range(max(0, n_tokens - 32), n_tokens):
        assert torch.equal(ring[0, :, t % 32], keys[:, t])
    assert int((ring[0] != 0).any(-1).sum()) == HEADS * min(32, n_tokens)
    assert not ring[1].any()


@pytest.mark.parametrize("options", [{}, {"slots": "full"}])
def test_where_all_blocks_stay_each_has_its_own_slot(options):
    store, given = made(**options), prompt(150)
    store.load_prompt(0, 1, *given)
    state = store.layers[0]
    assert not state.offloaded
    assert state.slot_block[1].tolist() == state.block_slot[1].tolist() == [list(range(13))] * HEADS
    assert torch.equal(rows(state.cache.slots[1], 150), given)
    assert (state.slot_block[0] == -1).all()
    with pytest.raises(ValueError, match="nothing to copy"):
        _ = state.job


def test_a_second_prompt_in_the_same_place_forgets_the_first():
    store = made(layer0_resident=False)
    store.load_prompt(0, 0, *prompt(150))
    state, neighbour = store.layers[0], prompt(40, seed=3)
    store.load_prompt(0, 1, *neighbour)
    state.slot_block[0, :, 1:3] = torch.tensor([4, 7]).int()  # as steps leave it
    state.block_slot[0, :, [4, 7]] = torch.tensor([1, 2]).int()
    for second, held in ((prompt(20, seed=1), 1), (prompt(32, seed=2), -1)):
        store.load_prompt(0, 0, *second)
        assert state.slot_block[0].tolist() == [[held, -1, -1, -1, -1]] * HEADS
        assert inverse(state)
    assert state.slot_block[1].tolist() == [[2, -1, -1, -1, -1]] * HEADS  # the neighbour's stays


@pytest.mark.parametrize("cuts", [(0,), (0, 30), (0, 47, 48), (0, 31, 63, 64, 140)])
def test_compressed_keys_of_a_prompt_in_chunks_are_those_of_the_whole(cuts):
    store, (keys, _) = made(), prompt(150)
    for start, stop in zip(cuts, (*cuts[1:], 150), strict=True):
        store.index_prompt(1, 1, keys[None, :, :stop], start)
    want = blocks.compress_keys(keys[None], RULE)
    compressed = store.layers[1].cache.compressed
    torch.testing.assert_close(compressed[1, :, : want.shape[2]], want[0])
    assert not compressed[1, :, want.shape[2] :].any()
    assert not compressed[0].any()


@pytest.mark.parametrize("n_tokens", [1, 79, 80, 100, 199])
@pytest.mark.parametrize("options", [{}, {"slots": 9}, {"layer0_resident": False, "index_dim": 16}])
def test_fill_leaves_the_first_blocks_and_the_one_being_written_in_every_layer(n_tokens, options):
    store = made(**options)
    store.load_prompt(1, 0, *prompt(150))
    store.fill(n_tokens)
    own = n_tokens // 16
    for state in store.layers:
        n_slots = state.slot_block.shape[2]
        want = list(range(n_slots)) if own < n_slots else [*range(n_slots - 1), own]
        assert state.slot_block.tolist() == [[want] * HEADS] * 2
        assert inverse(state)
        filled = [state.cache.slots, state.cache.ring, state.cache.compressed, state.index, state.cache.host]
        for tensor in filled:
            assert tensor is None or 0.8 < float(tensor.std()) < 1.2  # noise, and no NaN
    assert store.positions.tolist() == [n_tokens] * 2


def test_fill_repeats_with_its_seed_and_takes_1_to_all_but_one_token():
    first, again, other = made(), made(), made()
    first.fill(50)
    again.fill(50, seed=0)
    other.fill(50, seed=4)
    assert torch.equal(first.layers[2].cache.slots, again.layers[2].cache.slots)
    assert torch.equal(first.layers[2].cache.host, again.layers[2].cache.host)
    assert not torch.equal(first.layers[2].cache.slots, other.layers[2].cache.slots)
    for wrong in (0, 200):
        with pytest.raises(ValueError, match="fill takes 1 to 199 tokens"):
            first.fill(wrong)


def test_everything_is_made_where_the_plan_says_whatever_the_default_device():
    given, plan = prompt(75), Plan(2, LONGEST, LAYERS, HEADS, DIM, RULE, index_dim=8)

    def used(host):
        """All tensors of a store, as they are after a prompt and after fill."""
        store, found = Store(plan, host), []
        for layer in range(LAYERS):
            store.load_prompt(layer, 0, *given)
            store.index_prompt(layer, 0, given[0][None], 0)
            state = store.layers[layer]
            found += [t.clone() for t in (state.slot_block, state.block_slot, state.cache.ring)]
        store.fill(100)
        for state in store.layers:
            cached = [t for t in vars(state.cache).values() if t is not None]
            found += [*cached, state.slot_block, state.block_slot, state.index]
            found += vars(state.selection).values()
        return [*found, store.positions, store.nowhere]

    want, host = used(HostPool(plan)), HostPool(plan)
    with torch.device("meta"):
        found = used(host)
    assert all(map(torch.equal, found, want))


def test_a_store_starts_empty_with_what_scores_read_set_to_zero():
    store = Store(Plan(2, 20, LAYERS, HEADS, DIM, RULE, index_dim=8))  # too short for one window
    for state in store.layers:
        assert (state.slot_block == -1).all()
        assert (state.block_slot == -1).all()
        assert state.cache.compressed.shape == (2, HEADS, 1, DIM)
        assert state.index.shape == (2, HEADS, 20, 8)
        assert not any(t.any() for t in (state.cache.compressed, state.cache.ring, state.index))
    assert store.positions.tolist() == [0, 0]
    assert store.nowhere.tolist() == [[-1] * HEADS] * 2
    host, slots, src, dst, count = store.layers[1].job
    assert (host.shape, slots.shape) == ((2, HEADS, 2, 2, 16, DIM), (2, HEADS, 2, 2, 16, DIM))
    assert (src.shape, dst.shape, count.shape) == ((20,), (20,), (1,))


@pytest.mark.parametrize("options", [{}, {"index_dim": 8}, {"slots": "full", "dtype": torch.float16}])
def test_the_ledger_adds_up_by_kind(options):
    store = made(**options)
    ledger, bytes_each = store.ledger(), 2 if "dtype" in options else 4
    assert set(ledger) == {"resident", "compressed", "index", "rings", "maps", "pinned"}
    pairs, run = 2 * HEADS, 2 * 16 * DIM * bytes_each
    full = "slots" in options
    assert ledger["resident"] == pairs * run * (3 * 13 if full else 13 + 2 * 5)
    assert ledger["pinned"] == (0 if full else 2 * pairs * 13 * run)
    assert ledger["compressed"] == 3 * pairs * 11 * DIM * bytes_each
    assert ledger["rings"] == 3 * pairs * 32 * DIM * bytes_each
    assert ledger["index"] == (3 * pairs * LONGEST * 8 * 4 if "index_dim" in options else 0)
    maps = 0
    for n_slots in (13, 13, 13) if full else (13, 5, 5):
        lists = pairs * (5 + 5 + 1 + 5 + 5) + 1  # block_ids, slot_ids, tail_slot, src, dst; count
        maps += (
            4 * (pairs * (n_slots + 13) + lists + pairs * 2 * n_slots) + 8
        )  # scratch, last_use; the ticket
    assert ledger["maps"] == maps + 2 * 8 + 4 * pairs  # positions, nowhere
