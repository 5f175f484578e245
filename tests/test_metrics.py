import torch

from sparda.metrics import agreement, hit_rate, mass_recall
from sparda.spec import Sparsity

RULE = Sparsity(5, local_blocks=1)


def test_mass_recall_adds_the_mass_of_the_chosen_blocks_of_each_query():
    mass = torch.tensor([[[[0.5, 0.125, 0.25, 0.125], [0.25, 0.25, 0.5, 0.0]]]])
    assert mass_recall(mass, torch.tensor([[[[0, 2, -1], [0, 1, 2]]]])).tolist() == [[[0.75, 1.0]]]


def test_agreement_counts_the_learned_blocks_that_were_to_be_found():
    ours, theirs = torch.tensor([[[[0, 2, 3, 8, 9]]]]), torch.tensor([[[[0, 3, 4, 8, 9]]]])
    assert agreement(ours, theirs, torch.tensor([[9 * 64]]), 10, RULE).item() == 0.5


def test_agreement_is_a_share_of_their_blocks_not_of_ours():
    few, many = torch.tensor([0, 3, 8, 9, -1, -1]), torch.tensor([0, 2, 3, 4, 8, 9])  # 1 learned, 3 learned
    ours, theirs = torch.stack([few, many])[None, None], torch.stack([many, few])[None, None]
    got = agreement(ours, theirs, torch.tensor([[9 * 64, 9 * 64]]), 10, RULE)
    torch.testing.assert_close(got, torch.tensor([[[1 / 3, 1.0]]]))


def test_agreement_has_no_value_where_every_block_is_forced():
    ids = torch.tensor([[[[0, 1, -1]]]])
    assert agreement(ids, ids, torch.tensor([[100]]), 2, Sparsity(3, local_blocks=1)).isnan().all()


def test_hit_rate_leaves_padding_out_and_is_of_each_head():
    before, now = (
        torch.tensor([[[0, 1, -1, -1], [0, 2, 3, -1]]]),
        torch.tensor([[[0, 1, 2, -1], [0, 4, 5, 6]]]),
    )
    torch.testing.assert_close(hit_rate(before, now), torch.tensor([[2 / 3, 1 / 4]]))
