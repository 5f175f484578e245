from dataclasses import replace

import pytest
import torch

from sparda import blocks, cache
from sparda.cache import LayerCache
from sparda.kernels import rope_append, store_token
from sparda.spec import Sparsity

RULE = Sparsity(6, local_blocks=2, block_size=16)
HEADS, DIM = 2, 64


def layer(batch, kind, device, *, host: bool = True, n_slots: int = 3) -> LayerCache:
    """A cache full of reproducible noise."""
    noise = torch.Generator().manual_seed(3)

    def full(*shape):
        return torch.randn(shape, generator=noise).to(kind)

    slots, ring = full(batch, HEADS, n_slots, 2, 16, DIM), full(batch, HEADS, 32, DIM)
    compressed, store = full(batch, HEADS, 12, DIM), full(batch, HEADS, 12, 2, 16, DIM)
    if host and torch.device(device).type == "cuda":
        store = store.pin_memory()
    return LayerCache(slots.to(device), ring.to(device), compressed.to(device), store if host else None)


def token(batch, group, kind, device):
    """q, k, v, f as slices of one fused projection."""
    fused = torch.randn(batch, (group + 3) * HEADS * DIM, device=device).to(kind)
    parts = fused.split([group * HEADS * DIM] + [HEADS * DIM] * 3, 1)
    return [part.unflatten(1, (-1, DIM)) for part in parts]


def angles(device, rows=200):
    angle = torch.rand(rows, DIM // 2, generator=torch.Generator().manual_seed(5)) * 6
    return angle.cos().to(device), angle.sin().to(device)


@pytest.mark.parametrize(
    ("kind", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("group", [1, 3, 16])
def test_a_token_is_rotated_and_written_where_the_reference_writes_it(group, kind, limit, device, rms_error):
    if device.type == "cpu" and kind is torch.bfloat16:
        pytest.skip("bfloat16 runs on a GPU only")
    got, want = layer(2, kind, device), layer(2, kind, "cpu")
    table, want_table = angles(device), angles("cpu")
    for t in (30, 31, 47, 63):  # before a window, at its end, at the end of a block
        positions = torch.tensor([t, t + 16])
        q, k, v, f = token(2, group, kind, device)
        tail = torch.randint(0, 3, (2, HEADS), dtype=torch.int32)
        q_out, f_out = rope_append(q, k, v, f, *table, positions.to(device), tail.to(device), got, RULE)
        turn = [x[positions][:, None] for x in want_table]
        cache.append(cache.rotate(k.cpu(), *turn), v.cpu(), positions, tail, want, RULE)
        assert rms_error(q_out, cache.rotate(q.cpu(), *turn)) <= limit
        assert f_out is not None
        assert rms_error(f_out, cache.rotate(f.cpu(), *turn)) <= limit
        if device.type == "cuda":
            torch.cuda.synchronize()
        for name in ("slots", "ring", "compressed", "host"):
            assert rms_error(getattr(got, name), getattr(want, name)) <= limit, (name, t)


def test_appending_a_whole_sequence_gives_the_prompts_compressed_keys(device, rms_error):
    got = layer(1, torch.float32, device, host=False)
    table, keys = angles(device), []
    for t in range(70 if device.type == "cuda" else 49):
        q, k, v, _ = token(1, 1, torch.float32, device)
        at = torch.tensor([t], device=device)
        keys.append(cache.rotate(k.cpu(), *[x.cpu()[t] for x in table]))
        rope_append(
            q, k, v, None, *table, at, torch.zeros(1, HEADS, dtype=torch.int32, device=device), got, RULE
        )
    want = blocks.compress_keys(torch.stack(keys, 2), RULE)
    assert rms_error(got.compressed[:, :, : want.shape[2]], want) <= 1e-5


def test_a_window_is_averaged_over_its_keys_as_they_are_stored(device):
    kind, at = torch.float16, torch.tensor([31], device=device)
    (q, k, v, _), table = token(1, 1, kind, device), angles(device)
    tail = torch.zeros(1, HEADS, dtype=torch.int32, device=device)
    first, second = layer(1, kind, device), layer(1, kind, device)
    rope_append(q, k, v, None, *table, at, tail, first, RULE)
    second.ring.zero_()
    second.ring[:, :, 5] = -first.ring[:, :, 31]  # the rounded key: with it the window's sum is 0
    rope_append(q, k, v, None, *table, at, tail, second, RULE)
    assert not second.compressed[:, :, 0].any()


def test_a_missing_tail_slot_writes_no_slot(device):
    got = layer(1, torch.float32, device)
    before, at = got.slots.clone(), torch.tensor([15], device=device)
    nowhere = torch.full((1, HEADS), -1, dtype=torch.int32, device=device)
    rope_append(*token(1, 1, torch.float32, device), *angles(device), at, nowhere, got, RULE)
    assert torch.equal(got.slots, before)


def test_bad_input_is_refused_with_what_to_do(reference_only):
    given = token(1, 2, torch.float32, "cpu")
    table, at, tail = angles("cpu"), torch.tensor([5]), torch.zeros(1, HEADS, dtype=torch.int32)
    with pytest.raises(ValueError, match="rotary table of 200 rows"):
        rope_append(*given, *table, at + 300, tail, layer(1, torch.float32, "cpu"), RULE)
    with pytest.raises(ValueError, match="tail_slot must lie in"):
        rope_append(*given, *table, at, tail + 3, layer(1, torch.float32, "cpu"), RULE)
    q, k, v, f = given
    with pytest.raises(ValueError, match=r"k must have shape \[1, 2, 64\]"):
        rope_append(q, k.transpose(1, 2), v, f, *table, at, tail, layer(1, torch.float32, "cpu"), RULE)
    with pytest.raises(ValueError, match="host's 12"):
        rope_append(*given, *angles("cpu", 400), at + 300, tail, layer(1, torch.float32, "cpu"), RULE)


@pytest.mark.gpu
def test_an_unpinned_host_store_is_refused(cuda):
    bad = layer(1, torch.float32, "cpu")
    on_gpu = layer(1, torch.float32, cuda, host=False)
    store = LayerCache(on_gpu.slots, on_gpu.ring, on_gpu.compressed, bad.host)
    tail = torch.zeros(1, HEADS, dtype=torch.int32, device=cuda)
    given, at = token(1, 2, torch.float32, cuda), torch.tensor([5], device=cuda)
    with pytest.raises(ValueError, match="pinned"):
        rope_append(*given, *angles(cuda), at, tail, store, RULE)


def test_it_compiles_without_spills(compiled):
    pointers = ("q", "k", "v", "f", "q_out", "f_out", "slots", "ring", "compressed", "host")
    types = dict.fromkeys(pointers, "*bf16") | {"cos": "*fp32", "sin": "*fp32", "positions": "*i64"}
    types |= {"tail_slot": "*i32"} | dict.fromkeys(("q_step", "k_step", "v_step", "f_step"), "i32")
    types |= dict.fromkeys(("n_slots", "n_blocks", "n_windows"), "i32")
    sizes = {"HEADS": 2, "G": 16, "GP": 16, "D": 128, "S": 64, "WINDOW": 32, "STRIDE": 16}
    made = compiled(
        "sparda.kernels.rope_append", "append_kernel", signature=types,
        constexprs=sizes | {"TO_HOST": True, "HAS_F": True, "CHAINED": True}, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    assert made["usage"]["local"] == 0


def test_a_full_store_of_compressed_keys_is_refused(reference_only):
    whole = layer(1, torch.float32, "cpu")
    short = replace(whole, compressed=whole.compressed[:, :, :1].contiguous())
    tail = torch.zeros(1, HEADS, dtype=torch.int32)
    with pytest.raises(ValueError, match="allocate compressed for the longest sequence"):
        rope_append(*token(1, 2, torch.float32, "cpu"), *angles("cpu"), torch.tensor([47]), tail, short, RULE)


@pytest.mark.parametrize("with_host", [True, False])
def test_a_token_that_is_stored_after_its_rotation_lies_where_one_call_puts_it(device, with_host):
    kind = torch.float32
    once, twice = (layer(2, kind, device, host=with_host) for _ in range(2))
    table = angles(device)
    nowhere = torch.full((2, HEADS), -1, dtype=torch.int32, device=device)
    for t in (31, 46, 47):
        positions = torch.tensor([t, t + 16], device=device)
        q, k, v, f = token(2, 3, kind, device)
        tail = torch.randint(0, 3, (2, HEADS), dtype=torch.int32).to(device)
        rope_append(q, k, v, f, *table, positions, tail, once, RULE)
        rope_append(q, k, v, f, *table, positions, nowhere, twice, RULE)
        store_token(v, positions, tail, twice)
    if device.type == "cuda":
        torch.cuda.synchronize()
    for name in ("slots", "ring", "compressed", *(["host"] if with_host else [])):
        assert torch.equal(getattr(once, name), getattr(twice, name)), name
