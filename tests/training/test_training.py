"""Training a tiny Llama's Forecast on the CPU: it learns, resumes bitwise, and stops where it must."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import sparda
from sparda import blocks
from sparda.distill import PAPER, Recipe
from sparda.forecast import Forecast, Shape
from sparda.models.probe import Probe
from sparda.spec import Sparsity
from sparda.training import checkpoint
from sparda.training.backbone import Backbone
from sparda.training.data import Sequences
from sparda.training.loop import NotANumber, Run
from sparda.training.plan import Plan
from sparda.training.student import Student
from sparda.training.validate import Validation, by_oracle, by_query, by_student

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

RULE = Sparsity(5, block_size=16, local_blocks=1)
PLAN = Plan(
    RULE, length=512, rounds=4, sequences=2, positions=64, step_sequences=2, step_positions=16, passes=1,
    lr=3e-3, warmup=2,
)  # fmt: skip


def tiny(kv_heads=2, seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=kv_heads, head_dim=16, vocab_size=101, max_position_embeddings=1024,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for layer in model.model.layers:  # sharper attention: something to be learned
        layer.self_attn.q_proj.weight.data *= 20
        layer.self_attn.k_proj.weight.data *= 20
    return model


@pytest.fixture(scope="module")
def model():
    return tiny()


def text(n=8, seed=0):
    rng = np.random.default_rng(seed)
    return Sequences(rng.integers(3, 101, (n, 512)).astype(np.uint16), 512, "noise")


def validation(model, queries=24):
    at = torch.linspace(120, 511, queries).long()
    return Validation(model, torch.from_numpy(text(2, 9).take([0, 1])), at, [RULE])


def run(model, folder, plan=PLAN, **options):
    return Run(model, plan, text(), validation(model), folder, keep_every=1, **options)


def test_one_pass_sees_inputs_keys_and_queries_as_attach_does(model):
    tokens = torch.from_numpy(text().take([0, 1]))
    at = torch.arange(100, 512, 9)
    seen = Backbone(model, RULE, keep_queries=True).observe(tokens, at)
    assert model.config._attn_implementation != "sparda-observe"
    student = Student.of(model, seed=3, noise=0.3)
    probe = Probe(queries=None)
    options = {"weights": student.export(), "sparsity": RULE, "phases": (), "probe": probe}
    with torch.no_grad(), sparda.attach(model, selector="forecast", **options):
        model(tokens)
    ours = by_student(seen, student, RULE).unflatten(0, (3, 2))
    theirs = torch.stack([probe.at(layer).block_scores[:, :, at] for layer in range(3)])
    torch.testing.assert_close(ours, theirs / 4, rtol=1e-3, atol=1e-3)  # training divides by the root of d


def test_init_query_is_the_proxy_on_compressed_keys(model):
    seen = Backbone(model, RULE, keep_queries=True).observe(
        torch.from_numpy(text().take([0])), torch.arange(100, 512, 9)
    )
    scores = by_student(seen, Student.of(model), RULE)[0]  # layer 0 reads its own input: its query itself
    q = seen.queries[0].unflatten(1, (2, 2)).mean(2) / 4
    want = blocks.forecast_scores(q, seen.compressed[0], seen.positions[None], RULE)
    torch.testing.assert_close(scores[None], blocks.pool_to_blocks(want, 32, RULE), rtol=1e-3, atol=1e-3)


def test_only_the_forecast_gets_gradients(model, tmp_path):
    work = run(model, tmp_path)
    lost = work.learners[0].student(work.observe(0), RULE, Recipe())
    lost.mean().backward()
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in work.learners[0].student.parameters())


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(weighted=False), PAPER])
def test_what_was_seen_often_is_chosen_better(model, tmp_path, recipe):
    """Tokens are noise, so that recall of the very text that is trained on is what can rise."""
    plan = replace(PLAN, rounds=60, recipe=recipe, init="random", lr=1e-2)
    watched = Validation(model, torch.from_numpy(text(2).take([0, 1])), torch.arange(120, 512, 8), [RULE])
    work = Run(model, plan, text(2), watched, tmp_path, keep_every=60)
    student = work.learners[0].student

    def recall():
        return float(watched.layers(lambda seen, rule: by_student(seen, student, rule), RULE).mean())

    before = recall()
    work.go()
    assert recall() > before + 0.01
    oracle, query = (float(watched.layers(rule, RULE).mean()) for rule in (by_oracle, by_query))
    assert oracle > max(recall(), query)


@pytest.mark.parametrize("kept", [1, 3])
def test_a_killed_run_resumes_to_bitwise_equal_weights(model, tmp_path, kept):
    whole = run(model, tmp_path / "whole", seeds=[0, 1]).go()
    stopped = run(model, tmp_path / "killed", seeds=[0, 1])
    for _ in range(kept):
        stopped._one_round()
        stopped.round += 1
    stopped._keep()
    stopped._one_round()  # lost: it was never kept
    again = run(model, tmp_path / "killed", seeds=[0, 1])
    assert again.round == kept
    for a, b in zip(whole, again.go(), strict=True):
        assert torch.equal(a.folded(), b.folded())
    logs = [list(csv.DictReader((tmp_path / f / "log.csv").open())) for f in ("whole", "killed")]
    assert [(r["round"], r["seed"], r["recall_k5"]) for r in logs[0]][-2:] == [
        (r["round"], r["seed"], r["recall_k5"]) for r in logs[1]
    ][-2:]
    assert not torch.equal(whole[0].folded(), whole[1].folded())


def test_the_log_says_for_every_seed_what_was_reached(model, tmp_path):
    run(model, tmp_path, replace(PLAN, rounds=2), seeds=[0, 1]).go()
    run(model, tmp_path, replace(PLAN, rounds=2), seeds=[0, 1]).go()  # done already: nothing is told twice
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [(r["round"], r["seed"]) for r in rows] == [(str(n), str(s)) for n in (0, 1, 2) for s in (0, 1)]
    assert all(0 < float(r["recall_k5"]) < 1 for r in rows)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_checkpoint(model, tmp_path):
    work = run(model, tmp_path)
    work._one_round()
    work.round += 1
    work._keep()
    before = (tmp_path / checkpoint.NAME).read_bytes()
    with torch.no_grad():
        work.learners[0].student.weight[2, 0, 0] = float("nan")
    with pytest.raises(NotANumber, match=r"layer 2 .* at step 4"):
        work.go()
    assert (tmp_path / checkpoint.NAME).read_bytes() == before


def test_a_disk_that_fills_leaves_the_old_checkpoint(model, tmp_path, monkeypatch):
    import safetensors.torch

    work = run(model, tmp_path)
    work._one_round()
    work._keep()
    before = (tmp_path / checkpoint.NAME).read_bytes()

    def full(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        work._keep()
    assert (tmp_path / checkpoint.NAME).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [checkpoint.NAME]


def test_another_runs_or_models_checkpoint_is_refused(model, tmp_path):
    work = run(model, tmp_path)
    work._one_round()
    work._keep()
    with pytest.raises(ValueError, match=r"lr was 0\.003"):
        run(model, tmp_path, replace(PLAN, lr=1.0))
    with pytest.raises(ValueError, match="seeds"):
        run(model, tmp_path, seeds=[5])
    with pytest.raises(ValueError, match="another model"):
        run(tiny(kv_heads=4), tmp_path)
    (tmp_path / checkpoint.NAME).write_bytes(b"{}")
    with pytest.raises(ValueError, match="damaged"):
        run(model, tmp_path)


def test_a_model_without_groups_is_trained_too(tmp_path):
    alone = tiny(kv_heads=4)
    (student,) = run(alone, tmp_path, replace(PLAN, rounds=1)).go()
    student.export().check(Shape.of(alone))
    assert student.weight.shape == (3, 64, 64)


def test_the_exported_file_serves_the_model(model, tmp_path):
    (student,) = run(model, tmp_path, replace(PLAN, rounds=1)).go()
    path = student.export().save(tmp_path / "f.safetensors")
    weights = Forecast.load(path, Shape.of(model)).to("cpu", torch.float32)
    with torch.no_grad(), sparda.attach(model, selector="forecast", weights=weights, sparsity=RULE):
        assert model(torch.from_numpy(text().take([0]))).logits.isfinite().all()


def test_every_sequence_comes_once_before_any_comes_again():
    plan = replace(PLAN, sequences=3, step_sequences=3)
    drawn = np.concatenate([plan.draw(r, 7) for r in range(7)])
    for epoch in range(3):
        assert sorted(drawn[7 * epoch : 7 * epoch + 7]) == list(range(7))


def test_sampled_positions_ascend_differ_by_round_and_hold_the_last_ones():
    a, b = PLAN.sample(0), PLAN.sample(1)
    assert not torch.equal(a, b)
    for at in (a, b):
        assert (at.diff() > 0).all()
        assert at[0] >= 48
        assert at[-8:].tolist() == list(range(504, 512))
    assert len(replace(PLAN, positions=0).sample(0)) == 512 - 48


def test_steps_of_a_pass_see_every_sampled_query_once():
    plan = replace(PLAN, passes=2, sequences=6)
    steps = list(plan.steps(0, seed=1))
    assert len(steps) == 24 == plan.steps_per_round
    seen = [(group, i) for group, where in steps[:12] for i in where.tolist()]
    assert sorted(seen) == [(g, i) for g in range(3) for i in range(64)]


def test_the_plan_survives_json():
    assert json.loads(json.dumps(PLAN.as_dict()))["sparsity"]["budget_blocks"] == 5


def test_sequences_too_short_to_choose_from_are_refused():
    with pytest.raises(ValueError, match="raise --length"):
        replace(PLAN, length=56)
