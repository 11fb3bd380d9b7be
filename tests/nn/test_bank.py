"""The memory bank of InstDisc."""

import torch
import torch.nn.functional as F

from lewel.nn.bank import MemoryBank


def test_it_holds_what_was_written() -> None:
    bank = MemoryBank(10, 4, momentum=0.0)
    written = F.normalize(torch.randn(3, 4), dim=1)
    before = bank.entries.clone()
    bank.update(torch.tensor([7, 2, 5]), written)
    assert torch.allclose(bank.entries[[7, 2, 5]], written, atol=1e-6)
    others = [0, 1, 3, 4, 6, 8, 9]
    assert torch.equal(bank.entries[others], before[others])
    assert "entries" in bank.state_dict()


def test_an_entry_keeps_its_fraction_and_its_length() -> None:
    bank = MemoryBank(4, 6, momentum=0.5).double()
    old, new = bank.entries[1].clone(), F.normalize(torch.randn(6).double(), dim=0)
    bank.update(torch.tensor([1]), new[None])
    assert torch.allclose(bank.entries[1], F.normalize((old + new) / 2, dim=0))


def test_negatives_are_drawn_from_the_bank_but_for_the_own_entry() -> None:
    bank = MemoryBank(12, 4, momentum=0.5)
    query, indices = F.normalize(torch.randn(3, 4), dim=1), torch.tensor([4, 0, 11])
    positive, negative = bank.similarities(query, indices, many=99)
    assert torch.allclose(positive, (query * bank.entries[indices]).sum(1))
    for row, own in enumerate(indices.tolist()):
        others = [i for i in range(12) if i != own]
        assert torch.allclose(negative[row, others], query[row] @ bank.entries[others].T)
        assert negative[row, own] == -torch.inf
    torch.manual_seed(1)
    drawn = torch.randint(12, (5,))
    torch.manual_seed(1)
    _, few = bank.similarities(query, indices, many=5)
    full = (query @ bank.entries.T).masked_fill(F.one_hot(indices, 12).bool(), -torch.inf)
    assert torch.allclose(few, full[:, drawn])
