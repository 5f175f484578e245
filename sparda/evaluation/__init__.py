"""How good are the methods? Answers of tasks with intervals, and attention mass of the chosen blocks.

One rule for all of them (``methods.rule``): equal k, init and local blocks, sparse in prefill and decode.
What fills data/measured/<device>/ on a GPU:

    sparda eval accuracy --context 8192,4096 --shares 0.125 --n 200 --jobs 8             # the headline
    sparda eval accuracy --context 8192,4096,2048,1024 --shares 0.25 --n 50 --jobs 8
    sparda eval accuracy --methods sparse,sparda,sparda@7 --context 8192 --shares 0.25 --n 200 --jobs 8
    sparda eval accuracy --methods sparda@7 --context 8192,4096 --shares 0.125 --n 200 --jobs 8
    sparda eval accuracy --methods streaming,random,oracle --context 8192,4096,2048,1024 --n 50 --jobs 8
    sparda eval recall --context 8192,4096
    sparda eval needle --context 8192,4096 --shares 0.125 --n 50
    sparda eval exchange --methods sparda,infinigen --context 8192 --n 25   # on a processor too, with --out

    accuracy.csv  share of right answers a cell, with Wilson's interval
    samples.csv   right answers of each sample: what pairs are made of
    pairs.csv     methods compared on the same prompts; "average" over the tasks where dense counts
    recall.csv    mass recall, agreement with the query selection, hit rate: by layer and head
    needle.csv    attention mass on a task's one fact, and what of it is in the chosen blocks: by layer
    exchange.csv  what an answer gains if the query chooses instead: by layer, and in all
"""
