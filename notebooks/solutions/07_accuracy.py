# %% [markdown]
# # 07 · What a choice of blocks is worth in answers: solutions

# %%
from math import comb

from sparda.blocks import count_windows
from sparda.evaluation.statistics import wilson


# %% [markdown]
# **1.** The width falls as the root of n, slower at the edges than the simple formula says: count up. With
# nothing wrong it is z² / (n + z²) wide, never zero.
# %%
def ex1_samples(share, half):
    n = 1
    while True:
        low, high = wilson(share * n, n)
        if high - low <= 2 * half:
            return n
        n += 1


# %% [markdown]
# **2.** Ties say nothing. Under "equal" each of the others is a coin: as few heads as seen, or as few tails.
# %%
def ex2_pairs(ours, theirs):
    wins = sum(a > b for a, b in zip(ours, theirs, strict=True))
    losses = sum(a < b for a, b in zip(ours, theirs, strict=True))
    n, few = wins + losses, min(wins, losses)
    return wins, losses, min(1.0, 2 * sum(comb(n, i) for i in range(few + 1)) / 2**n)


# %% [markdown]
# **3.** Keys only, and of KV heads. One compressed key in `stride` tokens, or a quarter of every key.
# %%
def ex3_index(*, shape, sparsity, n_tokens, method):
    numbers = count_windows(n_tokens, sparsity) * shape.head_dim
    if method == "infinigen":
        numbers = n_tokens * shape.head_dim // 4
    return shape.n_layers * shape.n_kv_heads * numbers * 2
