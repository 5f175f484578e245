import torch

from sparda.metrics import agreement, hit_rate, mass_recall
from sparda.spec import Sparsity


def test_mass_recall_adds_the_mass_of_the_chosen_blocks():
    mass = torch.tensor([[[[0.5, 0.1, 0.3, 0.1]]]])
    assert mass_recall(mass, torch.tensor([[[[0, 2, -1]]]])).item() == 0.5 + torch.tensor(0.3).item()


def test_agreement_counts_learned_blocks_only():
    rule = Sparsity(5, local_blocks=1)
    ours, theirs = torch.tensor([[[[0, 2, 3, 8, 9]]]]), torch.tensor([[[[0, 3, 4, 8, 9]]]])
    assert agreement(ours, theirs, torch.tensor([[9 * 64]]), 10, rule).item() == 0.5


def test_agreement_has_no_value_where_every_block_is_forced():
    ids = torch.tensor([[[[0, 1, -1]]]])
    assert agreement(ids, ids, torch.tensor([[100]]), 2, Sparsity(3, local_blocks=1)).isnan().all()


def test_hit_rate_leaves_padding_out():
    before, now = torch.tensor([[[0, 1, -1, -1]]]), torch.tensor([[[0, 1, 2, -1]]])
    torch.testing.assert_close(hit_rate(before, now), torch.tensor([[2 / 3]]))
