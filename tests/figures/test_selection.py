"""Chapter 02's tables and figures, on made-up queries and keys."""

import json

import pytest
import torch

pytest.importorskip("pandas")
pytest.importorskip("plotly")

from sparda.figures import publish, score_map, selection
from sparda.selectors import LayerView, Query
from sparda.spec import Sparsity

RULE = Sparsity(budget_blocks=4, block_size=16, local_blocks=1)
N_TOKENS, N_BLOCKS = 150, 10


def make_views(n_layers=2):
    generator = torch.Generator().manual_seed(0)

    def rand(heads):
        return torch.randn(1, heads, N_TOKENS, 8, generator=generator)

    positions = torch.arange(N_TOKENS)[None]
    return [LayerView(layer, 3 * rand(6), rand(2), positions, RULE) for layer in range(n_layers)]


@pytest.fixture(scope="module")
def maps():
    return score_map.score_maps(make_views(), [f"block {b} <b>" for b in range(N_BLOCKS)], most_rows=40)


def table_of(maps, budget=4, layer=1, head=0):
    return score_map.score_map_table(maps, layer=layer, head=head, budget_blocks=budget)


def test_the_map_holds_evenly_spaced_queries_up_to_the_last(maps):
    assert maps.scores.shape == maps.mass.shape == (2, 2, len(maps.positions), N_BLOCKS)
    assert len(maps.positions) <= 40
    assert maps.positions[-1] == N_TOKENS - 1
    assert len(set(maps.positions.diff().tolist())) == 1
    torch.testing.assert_close(maps.mass.sum(-1), torch.ones(maps.mass.shape[:-1]))


def test_the_map_marks_the_blocks_that_the_query_selector_reads(maps):
    table = table_of(maps)
    view = make_views()[1]
    for position in maps.positions.tolist()[::7]:
        row = table[table["position"] == position]
        ids = Query().select(view.at(slice(position, position + 1)))[0, 0, 0]
        read = row[row["choice"].isin(["forced", "learned"])]["block"].tolist()
        assert read == ids[ids >= 0].tolist()
        own = position // 16
        assert row[row["choice"] == "future"]["block"].tolist() == list(range(own + 1, N_BLOCKS))
        assert row[row["choice"] == "forced"]["block"].tolist() == sorted({0, max(0, own - 1), own})


def test_the_map_figure_tells_forced_from_learned_by_shape_and_names_the_recall(maps):
    table, last = table_of(maps), N_TOKENS - 1
    figure = score_map.score_map_figure(table, position=last, texts=maps.texts, note="made up")
    forced, learned = figure.data[1:3]
    assert forced.marker.symbol != learned.marker.symbol
    assert list(forced.x) == [0, 8, 9]
    assert set(forced.y) == set(learned.y) == {last}
    row = table[table["position"] == last]
    recall = row["mass"][row["choice"].isin(["forced", "learned"])].sum()
    assert f"reads 4 of 10 blocks, mass recall {recall:.2f}" in figure.layout.title.text.replace("<br>", " ")
    assert "made up" in figure.layout.meta["stamp"]
    patterns = [bar.marker.pattern.shape for bar in figure.data[3:]]
    assert len(set(patterns)) == 3
    bars = {bar.name: list(bar.x) for bar in figure.data[3:]}
    assert bars["mass, forced"] == [0, 8, 9]
    assert sorted(b for blocks in bars.values() for b in blocks) == list(range(N_BLOCKS))  # each in one


def test_hovering_shows_the_text_of_a_block_with_its_signs_escaped(maps):
    figure = score_map.score_map_figure(table_of(maps), position=N_TOKENS - 1, texts=maps.texts)
    texts = {text for bar in figure.data[3:] for text in bar.customdata if text}
    assert "block 7 &lt;b&gt;" in texts


def test_a_position_between_the_rows_is_refused(maps):
    with pytest.raises(ValueError, match="no row for position 2"):
        score_map.score_map_figure(table_of(maps), position=2)


def test_a_budget_below_the_forced_blocks_is_refused(maps):
    with pytest.raises(ValueError, match="raise budget_blocks to 3"):
        table_of(maps, budget=2)


@pytest.fixture(scope="module")
def recalls():
    return selection.recall_table(
        make_views(),
        budgets=[3, 5, N_BLOCKS],
        selectors=["oracle", Query(), "random"],
        queries=slice(75, None),
    )


def test_recall_has_a_row_for_each_selector_layer_and_budget(recalls):
    assert len(recalls) == 3 * 2 * 3
    assert recalls["mass_recall"].between(0, 1.0001).all()


def test_forced_blocks_alone_are_the_same_for_all_and_all_blocks_recall_everything(recalls):
    means = selection.recall_means(recalls)
    for budget, group in means.groupby("budget_blocks"):
        if budget == 3:
            assert group["mass_recall"].nunique() == 1
        if budget == N_BLOCKS:
            assert group["mass_recall"].tolist() == pytest.approx([1] * 3)
            assert group["share_kept"].tolist() == pytest.approx([1] * 3)


def test_no_selector_beats_the_oracle(recalls):
    wide = recalls.pivot(index=["layer", "budget_blocks"], columns="selector", values="mass_recall")
    assert (wide["oracle"] >= wide["query"] - 1e-6).all()
    assert (wide["oracle"] >= wide["random"] - 1e-6).all()


def test_recall_figures_differ_in_more_than_colour_and_can_be_published(recalls, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARDA_BUILD_DIR", str(tmp_path))
    means = selection.recall_means(recalls)
    figure = publish("recall", selection.recall_figure(means, note="made up"), means)
    assert len({trace.line.dash for trace in figure.data}) == len(figure.data) == 3
    saved = json.loads((tmp_path / "recall.json").read_text())
    assert saved["layout"]["meta"]["status"] == "measured"
    layers = selection.recall_by_layer_figure(recalls, budget_blocks=5)
    assert list(layers.data[0].x) == [0, 1]
    with pytest.raises(ValueError, match="the table has 3, 5, 10"):
        selection.recall_by_layer_figure(recalls, budget_blocks=4)


def test_layer_views_are_what_a_dense_model_computes():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    views = selection.layer_views(model, torch.arange(40)[None], RULE)
    assert [view.layer for view in views] == [0, 1]
    assert views[1].queries.shape == (1, 4, 40, 8)
    assert views[1].keys.shape == (1, 2, 40, 8)
    assert config._attn_implementation != "sparda"
