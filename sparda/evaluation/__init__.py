"""How good are the methods? Answers of tasks with intervals, and attention mass of the chosen blocks.

One rule for all of them (``methods.rule``): equal k, init and local blocks, sparse in prefill and decode.
"""
