# %% [markdown]
# # 00 · One answer, an eighth of the context: solutions


# %% [markdown]
# **1.** Round the count of blocks up; a budget over it reads them all.
# %%
def ex1_share_read(n_tokens, block_size, budget):
    n_blocks = -(-n_tokens // block_size)
    return min(budget, n_blocks) / n_blocks


# %% [markdown]
# **2.** A set counts overlapping blocks once. What is left of the budget is free, as far as there are blocks.
# %%
def ex2_free_choices(position, block_size, budget, local):
    own = position // block_size
    forced = {0, *range(max(0, own - local), own + 1)}
    return min(budget, own + 1) - len(forced)


# %% [markdown]
# **3.** Drop the padding first: two lists that share -1 share no block.
# %%
def ex3_hit_rate(before, now):
    wanted = {block for block in now if block >= 0}
    return len(wanted & set(before)) / len(wanted)


# %% [markdown]
# **4.** Walk down from the largest k and stop at the first that fails.
# %%
def ex4_safe_budget(right, asked):
    safe = 0
    for k in sorted(right, reverse=True):
        if right[k] < asked:
            break
        safe = k
    return safe
