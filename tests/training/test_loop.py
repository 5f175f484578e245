"""What an optimiser step sees, at which rate it goes, and how processes and restarts share the work."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparda.spec import Sparsity
from sparda.training import checkpoint
from sparda.training.backbone import Seen
from sparda.training.data import Sequences
from sparda.training.loop import Learner, Run
from sparda.training.plan import Plan
from sparda.training.validate import Validation

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

RULE = Sparsity(5, block_size=16, local_blocks=1)
PLAN = Plan(
    RULE, length=256, rounds=3, sequences=8, positions=24, tail=4, step_sequences=4, step_positions=8,
    passes=2, lr=1e-2, warmup=4,
)  # fmt: skip


class Process(SimpleNamespace):
    """What a run asks of accelerate's Accelerator, of one of several processes that never meet."""

    def __init__(self, index=0, of=1):
        super().__init__(process_index=index, num_processes=of, device=torch.device("cpu"))
        self.is_main_process = index == 0

    def reduce(self, value, how):
        return value

    def wait_for_everyone(self):
        pass


class Watcher(torch.nn.Module):
    """A student whose loss is steep, and who notes the sequences and positions that it is shown."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 3))
        self.shown = []

    def forward(self, seen, sparsity, recipe):
        self.shown.append(seen.inputs[0, :, :, 0].flatten().tolist())
        return 100 * self.weight.sum(1)


def observed(n_sequences, n_positions):
    """Seen of one layer, whose input of sequence b at position p is 1000 b + p."""
    b, p = torch.arange(float(n_sequences)), torch.arange(float(n_positions))
    inputs = (1000 * b[:, None] + p)[None, :, :, None]
    nothing = torch.zeros(1, n_sequences, 1, n_positions, 1)
    return Seen(inputs, nothing, nothing, torch.arange(n_positions), p[:, None], p[:, None])


def learn(plan, process=None):
    """One round of a Watcher: it, and the rate and the gradients' norm of each step."""
    process = process or Process()
    learner = Learner(0, Watcher(), plan)
    taken, step = [], learner.optimizer.step

    def watched():
        (group,) = learner.optimizer.param_groups
        taken.append((group["lr"], learner.student.weight.grad.norm().item()))
        step()

    learner.optimizer.step = watched
    seen = observed(plan.sequences // process.num_processes, plan.positions)
    learner.learn(seen, 0, process, lambda: None)
    return learner.student, taken


@pytest.mark.parametrize("processes", [1, 2])
def test_every_sampled_query_of_every_sequence_is_seen_once_a_pass(processes):
    student, _ = learn(PLAN, Process(of=processes))
    mine = PLAN.sequences // processes
    counted = Counter(one for shown in student.shown for one in shown)
    assert counted == {1000.0 * b + p: PLAN.passes for b in range(mine) for p in range(PLAN.positions)}
    size = PLAN.step_sequences // processes
    assert {len({one // 1000 for one in shown}) for shown in student.shown} == {size}


def test_each_step_goes_at_the_plans_rate():
    _, taken = learn(PLAN)
    rates = [rate for rate, _ in taken]
    assert rates == [PLAN.rate(step) for step in range(PLAN.steps_per_round)]
    assert rates[0] < rates[3] > rates[-1]  # it warms up, then falls


@pytest.mark.parametrize(("clip", "norm"), [(0.0, 100 * 3**0.5), (0.25, 0.25)])
def test_gradients_are_clipped_to_the_plans_norm_and_only_if_it_has_one(clip, norm):
    _, taken = learn(replace(PLAN, clip=clip))
    assert [found for _, found in taken] == pytest.approx([norm] * len(taken), rel=1e-4)


def test_processes_step_by_the_mean_of_their_gradients():
    class Met(Process):
        def reduce(self, value, how):
            assert how == "mean"
            return value / 4  # as if the other's gradients were minus a half of ours

    _, taken = learn(PLAN, Met(of=2))
    assert [norm for _, norm in taken] == pytest.approx([25 * 3**0.5] * len(taken))


def test_the_optimiser_is_the_published_one_with_the_plans_decay():
    (group,) = Learner(0, Watcher(), replace(PLAN, weight_decay=0.25)).optimizer.param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.95), 0.25)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=101, max_position_embeddings=512,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def noise(n, seed):
    rng = np.random.default_rng(seed)
    return Sequences(rng.integers(3, 101, (n, PLAN.length)).astype(np.uint16), PLAN.length, "noise")


def run(model, folder, **options):
    tokens = torch.from_numpy(noise(1, 9).take([0]))
    watched = Validation(model, tokens, torch.arange(120, PLAN.length, 16), [RULE])
    return Run(model, PLAN, noise(20, 0), watched, folder, **options)


class Noted(Sequences):
    """Sequences that note which of them were taken."""

    def take(self, indices):
        self.noted.extend(indices)
        return super().take(indices)


def test_processes_share_a_rounds_sequences_and_no_two_take_the_same(model, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(Noted, "noted", taken, raising=False)
    for index in range(2):
        work = run(model, tmp_path / str(index), accelerator=Process(index, of=2), batch=2)
        work.train = Noted(work.train.tokens, PLAN.length, "noise")
        assert work.observe(1).inputs.shape[1] == PLAN.sequences // 2
    assert sorted(taken) == sorted(PLAN.draw(1, 20).tolist())


def test_a_run_that_was_stopped_before_it_kept_a_round_tells_that_round_once(model, tmp_path, monkeypatch):
    save, calls = checkpoint.save, []

    def stopped_at_the_second(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return save(*arguments, **options)

    monkeypatch.setattr(checkpoint, "save", stopped_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, seeds=[0, 1]).go()  # round 2 stands in the log and in no checkpoint
    monkeypatch.setattr(checkpoint, "save", save)
    run(model, tmp_path, seeds=[0, 1]).go()
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [(row["round"], row["seed"]) for row in rows] == [
        (str(r), str(s)) for r in range(4) for s in (0, 1)
    ]
