# %% [markdown]
# # 02 · Which blocks may a query read: solutions


# %% [markdown]
# **1.** Window j ends at token 16j + 31, so count the j with 16j + 31 <= position.
# %%
def ex1_visible_windows(position):
    return max(0, (position - 31) // 16 + 1)


# %% [markdown]
# **2.** The softmax runs along the windows, head by head; only then are the heads summed.
# %%
def ex2_group_scores(logits):
    return logits.softmax(-1).sum(0)


# %% [markdown]
# **3.** Windows 4b-1 to 4b+3 overlap block b. At the edges fewer of them exist.
# %%
def ex3_pool(scores, n_blocks):
    return [max(scores[max(0, 4 * b - 1) : 4 * b + 4].tolist()) for b in range(n_blocks)]


# %% [markdown]
# **4.** Python's sort is stable: sorted by falling score, equal ones stay in the order of their ids.
# %%
def ex4_select(scores, own, budget):
    forced = {0, max(0, own - 1), own}
    others = [block for block in range(own + 1) if block not in forced]
    best = sorted(others, key=lambda block: -scores[block])[: budget - len(forced)]
    return sorted([*forced, *best])


# %% [markdown]
# **5.** An id of -1 would pick the last block; drop the padding first.
# %%
def ex5_mass_recall(mass, ids):
    return mass[ids[ids >= 0]].sum()
