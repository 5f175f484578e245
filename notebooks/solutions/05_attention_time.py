# %% [markdown]
# # 05 · Where attention time goes: solutions

# %%
from sparda.blocks import count_blocks, count_windows


# %% [markdown]
# **1.** Compressed keys have no values; blocks have both. A short context has fewer than k blocks.
# %%
def ex1_step_bytes(*, shape, sparsity, n_tokens):
    key = shape.n_kv_heads * shape.head_dim * 2
    n_blocks = min(sparsity.budget_blocks, count_blocks(n_tokens, sparsity))
    return key * (count_windows(n_tokens, sparsity) + 2 * n_blocks * sparsity.block_size)


# %% [markdown]
# **2.** Per query head: 2 d a compressed key, 4 d a key that is attended to. So they meet at 2 k S windows,
# one every `stride` tokens. The Forecast scores with one head for the group: it gets `group` times as far.
# %%
def ex2_crossing(*, budget_blocks, block_size, stride, group, selector):
    windows = 2 * budget_blocks * block_size
    return windows * stride * (group if selector == "forecast" else 1)


# %% [markdown]
# **3.** Old time over new time; the other parts stay.
# %%
def ex3_gain(times, part, factor):
    before = sum(times.values())
    return before / (before - times[part] + times[part] / factor)
