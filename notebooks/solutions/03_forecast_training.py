# %% [markdown]
# # 03 · Train the layer before to choose: solutions


# %% [markdown]
# **1.** Both sides become distributions over the free blocks. Then a query counts as much as it can lose.
# %%
def ex1_loss(mass, scores, free):
    outside = mass[free].sum()
    target = mass[free] / outside
    return outside * (target * (target.log() - scores[free].log_softmax(0))).sum()


# %% [markdown]
# **2.** L - 1 Forecasts and layer 0's own projection: L of them, with one head for each KV head.
# %%
def ex2_added_weights(*, n_layers, hidden, n_heads, n_kv_heads, head_dim):
    return n_layers * hidden * n_kv_heads * head_dim


# %% [markdown]
# **3.** Means first, then one ratio.
# %%
def ex3_gap_closed(ours, query, oracle):
    ours, query, oracle = (sum(values[1:]) / (len(values) - 1) for values in (ours, query, oracle))
    return (ours - query) / (oracle - query)
