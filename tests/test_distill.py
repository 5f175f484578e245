"""Teachers and losses against plain, slow versions written from the rules."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparda import attention, blocks, distill, metrics
from sparda.attention import block_mass
from sparda.distill import PAPER, Recipe
from sparda.spec import Sparsity

SMALL = Sparsity(5, block_size=16, local_blocks=1, window=8, stride=4)


def tensors(n_tokens=200, seed=0, heads=(4, 2), dim=8, batch=2):
    g = torch.Generator().manual_seed(seed)
    q, k = (3 * torch.randn(batch, h, n_tokens, dim, generator=g) for h in heads)
    positions = torch.arange(100, n_tokens, 7)
    return q[:, :, positions], k, positions


def test_the_mass_teacher_is_the_exact_attention_mass():
    q, k, at = tensors()
    want = block_mass(q, k, at.expand(2, -1), block_size=16)
    torch.testing.assert_close(distill.teach(q, k, at, SMALL, Recipe()), want)


@pytest.mark.parametrize("pooling", ["exact", "released"])
def test_the_fine_teacher_is_pooled_over_the_fine_keys_of_a_window(pooling):
    q, k, at = tensors(seed=1)
    got = distill.teach(q, k, at, SMALL, Recipe(teacher="fine", pooling=pooling))
    fine = (k[:, :, 1:] + k[:, :, :-1]) / 2
    for b, h, i in ((0, 0, 0), (1, 1, 5), (0, 1, len(at) - 1)):
        t = int(at[i])
        seen = fine[b, h, :t]  # the last visible mean is of keys t - 1 and t
        shares = sum(torch.softmax(seen @ q[b, 2 * h + g, i] / math.sqrt(8), 0) for g in range(2))
        n = (t - 8 + 1) // 4 + 1
        span = {"exact": lambda j: (4 * j, 4 * j + 7), "released": lambda j: (4 * j - 1, 4 * j + 4)}[pooling]
        pooled = torch.stack([shares[max(0, span(j)[0]) : span(j)[1]].max() for j in range(n)])
        torch.testing.assert_close(got[b, h, i, :n], pooled / pooled.sum(), rtol=1e-4, atol=1e-6)
        assert not got[b, h, i, n:].any()


def test_the_coarse_teacher_is_the_query_selections_own_score():
    q, k, at = tensors(seed=2)
    got = distill.teach(q, k, at, SMALL, Recipe(teacher="coarse"))
    scores = blocks.query_scores(q, blocks.compress_keys(k, SMALL), at.expand(2, -1), SMALL)
    torch.testing.assert_close(got, scores.masked_fill(scores.isinf(), 0) / 2)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**16), recipe=st.sampled_from([Recipe(), PAPER, Recipe(teacher="coarse")]))
def test_rows_of_every_teacher_sum_to_one(seed, recipe):
    q, k, at = tensors(seed=seed)
    total = distill.teach(q, k, at, SMALL, recipe).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_positions_on_the_cpu_or_not_give_the_same_teacher():
    q, k, at = tensors(600)
    whole = distill.teach(q, k, at, SMALL, Recipe())
    alone = torch.cat(
        [distill.teach(q[:, :, i : i + 1], k, at[i : i + 1], SMALL, Recipe()) for i in range(len(at))], 2
    )
    torch.testing.assert_close(whole, alone)


def prediction(q, k, at, seed=5):
    forecast = torch.randn(2, 2, len(at), 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    return forecast, distill.predict(forecast, blocks.compress_keys(k, SMALL), at, SMALL)


def test_a_prediction_is_the_forecasts_score_over_the_root_of_d():
    q, k, at = tensors(seed=3)
    forecast, got = prediction(q, k, at)
    want = blocks.forecast_scores(forecast, blocks.compress_keys(k, SMALL), at.expand(2, -1), SMALL)
    torch.testing.assert_close(got, want / math.sqrt(8))


def test_several_equal_heads_predict_what_one_does():
    q, k, at = tensors(seed=3)
    forecast, one = prediction(q, k, at)
    two = distill.predict(forecast.repeat_interleave(2, 1), blocks.compress_keys(k, SMALL), at, SMALL)
    torch.testing.assert_close((two - math.log(2)).softmax(-1), one.softmax(-1))
    two.masked_fill(two.isinf(), 0).sum().backward()
    assert forecast.grad is not None
    assert forecast.grad.isfinite().all()


def free_blocks(t):
    return [b for b in range(1, t // 16) if b < t // 16 - 1]


def test_the_mass_loss_is_kl_over_the_blocks_that_are_not_forced():
    q, k, at = tensors(seed=4)
    _, scores = prediction(q, k, at)
    mass = distill.teach(q, k, at, SMALL, Recipe())
    got = distill.loss(scores, mass, at, SMALL, Recipe(weighted=False))
    weighted = distill.loss(scores, mass, at, SMALL, Recipe())
    pooled = blocks.pool_to_blocks(scores, mass.shape[-1], SMALL)
    for b, h, i in ((0, 0, 0), (1, 1, 7)):
        free = free_blocks(int(at[i]))
        target = mass[b, h, i, free]
        p = pooled[b, h, i, free].log_softmax(0)
        kl = float((target / target.sum() * (target / target.sum()).log() - target / target.sum() * p).sum())
        assert float(got[b, h, i]) == pytest.approx(kl, rel=1e-4)
        assert float(weighted[b, h, i]) == pytest.approx(kl * float(target.sum()), rel=1e-4)


@pytest.mark.parametrize("entries", [4, 1])
def test_the_papers_loss_keeps_the_teachers_learned_windows_and_one_rest(entries):
    q, k, at = tensors(seed=6)
    _, scores = prediction(q, k, at)
    recipe = Recipe(teacher="fine", entries=entries)
    target = distill.teach(q, k, at, SMALL, recipe)
    got = distill.loss(scores, target, at, SMALL, recipe)
    for b, h, i in ((0, 1, 2), (1, 0, 9)):
        t = int(at[i])
        n = (t - 8 + 1) // 4 + 1
        want = target[b, h, i, :n]
        block = torch.tensor([want[max(0, 4 * c - 1) : 4 * c + 4].max() for c in free_blocks(t)])
        learned = [free_blocks(t)[c] for c in block.topk(min(5 - 3, len(block))).indices]
        groups = [list(range(4 * c, 4 * c + 4)) for c in learned]
        if entries == 4:
            groups = [[j] for g in groups for j in g]
        groups.append([j for j in range(n) if not any(j in g for g in groups)])
        p = scores[b, h, i, :n].softmax(0)
        kl = sum(float(want[g].sum()) * math.log(float(want[g].sum()) / float(p[g].sum())) for g in groups)
        assert float(got[b, h, i]) == pytest.approx(kl, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(weighted=False),
        PAPER,
        Recipe(teacher="coarse", rest=False, entries=1),
    ],
)
def test_losses_are_finite_not_negative_and_reach_the_forecast_only(recipe):
    q, k, at = tensors(seed=8)
    q.requires_grad_()
    forecast, scores = prediction(q, k, at)
    with torch.no_grad():
        target = distill.teach(q, k, at, SMALL, recipe)
    lost = distill.loss(scores, target, at, SMALL, recipe)
    assert lost.isfinite().all()
    assert (lost > -1e-5).all()
    lost.mean().backward()
    assert forecast.grad is not None
    assert forecast.grad.isfinite().all()
    assert forecast.grad.abs().sum() > 0
    assert q.grad is None


def test_a_perfect_prediction_of_the_mass_loses_nothing():
    q, k, at = tensors(seed=9)
    mass = distill.teach(q, k, at, SMALL, Recipe())
    free = distill._free(at, mass.shape[-1], SMALL)
    lost = distill.divergence(mass, mass.log(), free)
    torch.testing.assert_close(lost, torch.zeros_like(lost), rtol=0, atol=1e-6)


def test_unknown_names_are_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="mass, fine, coarse"):
        Recipe(teacher="exact")  # type: ignore[arg-type]


class Largest(TorchDispatchMode):
    """Remembers the most elements that any tensor had."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in tree_leaves(out) if torch.is_tensor(t))])
        return out


@pytest.mark.parametrize("recipe", [Recipe(), PAPER, Recipe(teacher="coarse")])
def test_no_tensor_of_a_teacher_is_larger_than_a_slice_of_queries(recipe, monkeypatch):
    monkeypatch.setattr(attention, "STREAM_ELEMENTS", 2**18)
    at = torch.linspace(4096, 8191, 64).long()
    q, k = torch.randn(1, 2, 64, 8), torch.randn(1, 1, 8192, 8)
    with Largest() as seen:
        distill.teach(q, k, at, Sparsity(16, local_blocks=4), recipe)
    assert seen.elements <= 2**18 < 64 * 2 * 8192


@pytest.mark.gpu
def test_32k_tokens_are_taught_under_4_gb_on_a_gpu():
    torch.cuda.reset_peak_memory_stats()
    q = torch.randn(1, 9, 512, 64, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 3, 32768, 64, device="cuda", dtype=torch.bfloat16)
    at = torch.linspace(1024, 32767, 512).long()
    for recipe in (Recipe(), PAPER, Recipe(teacher="coarse")):
        distill.teach(q, k, at, Sparsity(16, local_blocks=4), recipe)
    assert torch.cuda.max_memory_allocated() < 4e9


def test_with_hardly_any_softness_the_recall_objective_is_what_mass_recall_misses():
    q, k, at = tensors()
    target = distill.teach(q, k, at, SMALL, Recipe())
    scores = torch.randn(target.shape, generator=torch.Generator().manual_seed(2))  # without ties
    for rule in distill.budgets(SMALL):
        ids = blocks.select_blocks(scores, at.expand(2, -1), rule)
        want = 1 - metrics.mass_recall(target, ids)
        torch.testing.assert_close(distill._missed(scores, target, at, rule, 1e-4), want, atol=1e-3, rtol=0)


def test_the_recall_objective_is_the_mean_over_both_budgets_and_has_a_gradient():
    q, k, at = tensors()
    recipe = Recipe(objective="recall")
    target = distill.teach(q, k, at, SMALL, recipe)
    forecast = q[:, ::2].clone().requires_grad_()
    scores = distill.predict(forecast, blocks.compress_keys(k, SMALL), at, SMALL)
    lost = distill.loss(scores, target, at, SMALL, recipe)
    pooled = blocks.pool_to_blocks(scores, target.shape[-1], SMALL)
    parts = [distill._missed(pooled, target, at, rule, 1.0) for rule in distill.budgets(SMALL)]
    torch.testing.assert_close(lost, (parts[0] + parts[1]) / 2)
    lost.mean().backward()
    assert forecast.grad.isfinite().all()
    assert forecast.grad.abs().sum() > 0


def test_the_recall_objective_needs_mass_and_a_width():
    for wrong in ({"teacher": "fine"}, {"softness": 0.0}):
        with pytest.raises(ValueError, match="teacher mass and a softness above 0"):
            Recipe(objective="recall", **wrong)


def test_a_forecast_is_taught_for_k_blocks_and_for_twice_as_many_of_which_twice_as_many_are_local():
    rule = Sparsity(8, block_size=32, local_blocks=3)
    assert distill.budgets(rule) == [rule, Sparsity(16, block_size=32, local_blocks=6)]
