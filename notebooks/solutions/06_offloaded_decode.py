# %% [markdown]
# # 06 · Decode with the cache in host memory: solutions

# %%
from sparda import bounds
from sparda.spec import model, sparsity

of = {"shape": model("minicpm4.1-8b"), "sparsity": sparsity("minicpm4.1-8b"), "n_tokens": 131_072}


# %% [markdown]
# **1.** Each step over the one before it; then the product is the whole gain.
# %%
def ex1_parts(*, sparse, no_prefetch, sparda, sparda_best):
    return {"selector": no_prefetch / sparse, "overlap": sparda / no_prefetch, "batch": sparda_best / sparda}


# %% [markdown]
# **2.** Link time falls as the rate grows: raise the rate by the factor by which the link is too slow.
# %%
def ex2_link(*, batch, misses):
    floor = bounds.decode_bound(batch=batch, misses=misses, **of)
    return bounds.H200_RATES.link_gb_per_s * floor.link_s / floor.memory_s


# %% [markdown]
# **3.** Keep the blocks in the order in which they were wanted last; room is made at the front.
# %%
def ex3_misses(wanted, slots):
    order, missed = [], 0
    for blocks in wanted:
        missed += len(blocks - set(order))
        order = ([block for block in order if block not in blocks] + sorted(blocks))[-slots:]
    return missed
