"""How good are the methods? Answers of tasks with intervals, and attention mass of the chosen blocks.

One rule for all of them (``methods.rule``): equal k, init and local blocks, sparse in prefill and decode.
What fills data/measured/<device>/ on a GPU:

    ALL=1024,2048,4096,8192
    sparda eval accuracy --methods dense --context $ALL --n 50 --all-tasks      # which tasks count?
    sparda eval accuracy --context 4096,8192 --shares 0.125 --tasks ...         # the headline
    sparda eval accuracy --methods sparse,infinigen,sparda --context $ALL --shares 0.25 --n 50 --tasks ...
    sparda eval accuracy --methods streaming,random,oracle --context 4096 --shares 0.125 --n 50 --tasks ...
    sparda eval recall --context 2048,4096,8192

    accuracy.csv  share of right answers a cell, with Wilson's interval
    samples.csv   right answers of each sample: what pairs are made of
    pairs.csv     methods compared on the same prompts; "average" over the tasks where dense counts
    recall.csv    mass recall, agreement with the query selection, hit rate: by layer and head
"""
