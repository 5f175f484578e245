# %% [markdown]
# # 01 · What a long context costs: solutions

# %%
from sparda import bounds
from sparda.spec import model, sparsity


# %% [markdown]
# **1.** A key and a value, in every layer and KV head.
# %%
def ex1_bytes_per_token(*, n_layers, n_kv_heads, head_dim, dtype_bytes):
    return 2 * n_layers * n_kv_heads * head_dim * dtype_bytes


# %% [markdown]
# **2.** Floor division rounds down, below zero too: hence the `max`.
# %%
def ex2_sequences_that_fit(*, memory_bytes, weight_bytes, bytes_per_sequence):
    return max(0, (memory_bytes - weight_bytes) // bytes_per_sequence)


# %% [markdown]
# **3.** A block of one KV head holds 64 keys and 64 values of `head_dim` numbers of 2 bytes.
# %%
def ex3_miss_seconds(*, shape, batch, misses, gb_per_s):
    block = 2 * 64 * shape.head_dim * 2
    return (shape.n_layers - 1) * batch * shape.n_kv_heads * misses * block / (gb_per_s * 1e9)


# %% [markdown]
# **4.** The link time grows with the misses and the memory time does not, so try every count.
# At batch 64 three of 96 blocks may miss: a hit rate of 0.97.
# %%
def ex4_most_hidden_misses(*, batch):
    of = {"shape": model("minicpm4.1-8b"), "sparsity": sparsity("minicpm4.1-8b"), "n_tokens": 131_072}
    hidden = [m for m in range(97) if bounds.decode_bound(batch=batch, misses=m, **of).limit == "memory"]
    return max(hidden)


# %% [markdown]
# **5.** L - 1 Forecasts and one projection for layer 0 make L of them; no projection has a bias.
# %%
def ex5_forecast_percent(*, shape):
    return 100 * shape.n_layers * shape.hidden * shape.n_kv_heads * shape.head_dim / shape.n_parameters
