"""Batches: every caption once, each picture of a batch once, and who may be mirrored."""

from types import SimpleNamespace

import pytest
import torch

from datasets import CaptionDataset
from lab.train import batches
from lab.train.batches import Batches, in_order, loader, mirrored, shuffled


@pytest.fixture
def dataset(tiny_data):
    return CaptionDataset(**tiny_data, split='TRAIN')


class Sized(SimpleNamespace):
    """What ``shuffled`` needs of a data set."""

    def __len__(self):
        return len(self.caplens)


def test_a_batch_holds_each_picture_once(dataset):
    numbers = torch.tensor([7, 50, 5, 119, 51, 8])
    batch = Batches(dataset, [torch.tensor([0]), numbers])[1]
    assert len(batch.images) == 3 and torch.equal(batch.numbers, numbers)
    for i, number in enumerate(numbers.tolist()):
        image, caption, caplen = dataset[number]
        assert torch.equal(batch.images[batch.image_of[i]], image)
        assert batch.caplens[i] == caplen
        assert torch.equal(batch.captions[i], caption[:batch.captions.shape[1]])
    assert batch.captions.shape[1] == batch.caplens.max()


def test_mirrored_captions_see_the_mirror_image(dataset):
    flip = torch.zeros(len(dataset), dtype=torch.bool)
    flip[[5, 7]] = True
    batch = Batches(dataset, [torch.arange(5, 10)], flip)[0]
    assert len(batch.images) == 2
    for i, number in enumerate(range(5, 10)):
        image = dataset.image(1)
        assert torch.equal(batch.images[batch.image_of[i]], image.flip(2) if flip[number] else image)


@pytest.mark.parametrize('by_picture', [False, True])
@pytest.mark.parametrize('batch_size', [1, 7, 20, 200])
def test_shuffled_gives_each_caption_once(dataset, batch_size, by_picture):
    batches = [shuffled(dataset, batch_size, torch.Generator().manual_seed(seed), by_picture)
               for seed in (0, 0, 1)]
    for order in batches:
        numbers = torch.cat(order)
        left_out = len(dataset) % batch_size == 1 and batch_size > 1 and not by_picture
        assert len(numbers.unique()) == len(numbers) == len(dataset) - left_out
        sizes = {len(batch) for batch in order[:-1]}
        assert sizes <= {max(round(batch_size / 5), 1) * 5 if by_picture else batch_size}
        if by_picture:
            assert all(len(batch) == 5 * len((batch // 5).unique()) for batch in order)
    assert all(map(torch.equal, batches[0], batches[1]))
    assert len(batches[0]) == 1 or not all(map(torch.equal, batches[0], batches[2]))


@pytest.mark.parametrize('by_picture', [False, True])
def test_of_many_pictures_some_are_shuffled_at_a_time_in_blocks_of_the_file(by_picture, monkeypatch):
    monkeypatch.setattr(batches, 'WINDOW', 120)
    monkeypatch.setattr(batches, 'BLOCK', 10)
    lengths = torch.randint(3, 40, (1000 * 2, 1), generator=torch.Generator().manual_seed(0))
    dataset = Sized(caplens=lengths, cpi=2, names=range(1000))
    orders = [torch.cat(shuffled(dataset, 16, torch.Generator().manual_seed(seed), by_picture)) // 2
              for seed in (0, 1)]
    first_blocks = set()
    for order in orders:
        assert torch.equal(order.bincount(), torch.full((1000,), 2))
        for part in order[:8 * 240].split(240):
            blocks = (part.unique() // 10).bincount(minlength=100)
            assert (blocks == 10).sum() == (blocks > 0).sum() == 12
            assert (part.diff().abs() > 20).float().mean() > 0.4  # shuffled
        first_blocks.add(tuple((order[:240].unique() // 10).unique().tolist()))
        assert (torch.tensor(list(first_blocks)[-1]).diff() > 1).any()  # from all over the file
    assert len(first_blocks) == 2  # others in each epoch


def test_a_single_caption_left_over_is_left_out_and_a_batch_size_of_one_is_kept(dataset):
    assert sum(map(len, shuffled(dataset, 17, torch.Generator()))) == 119
    assert len(shuffled(dataset, 1, torch.Generator())) == 120


def test_in_order(dataset):
    assert torch.equal(torch.cat(in_order(dataset, 32)), torch.arange(120))
    assert {len(batch) for batch in in_order(dataset, 32)} == {30}
    assert [len(batch) for batch in in_order(dataset, 3)] == [5] * 24
    first = in_order(dataset, 20, torch.tensor(dataset.first_captions))
    assert [len(batch) for batch in first] == [20, 4] and torch.equal(torch.cat(first), torch.arange(0, 120, 5))


def test_no_caption_that_speaks_of_left_or_right_is_mirrored(dataset):
    words = {f'w{i}': i for i in range(1, 60)} | {'Left': 60, 'rightmost': 61, 'bright': 62, '<unk>': 63}
    dataset.references = [[['a', 'word']] for _ in dataset.references]
    dataset.references[0] = [['far-left', 'of'], ['a', 'rightmost']]
    dataset.captions = dataset.captions.clamp(max=59)
    dataset.captions[3, 2], dataset.captions[4, 7], dataset.captions[6, 2] = 60, 61, 62
    flips = torch.stack([mirrored(dataset, words, torch.Generator().manual_seed(seed)) for seed in range(200)]).float()
    assert not flips[:, [3, 4]].any()
    others = torch.ones(120, dtype=torch.bool)
    others[[3, 4]] = False
    assert flips[:, others].mean().item() == pytest.approx(0.5, abs=0.05)
    assert flips[:, others].mean(0).min() > 0.3  # 'bright' is no side
    pictures = flips[:, 10:].view(200, -1, 5)  # the captions of a picture see the same
    assert torch.equal(pictures.amax(2), pictures.amin(2))
    # a word that the vocabulary does not have may be "far-left" in the first picture, but not in the second
    dataset.captions[[2, 5], [1, 1]] = 63
    flips = torch.stack([mirrored(dataset, words, torch.Generator().manual_seed(seed)) for seed in range(200)])
    assert not flips[:, 2:5].any() and flips[:, [0, 1, 5]].any(0).all()
    # where a caption is scored against all of its picture's: all of these or none
    flips = torch.stack([mirrored(dataset, words, torch.Generator().manual_seed(seed), True) for seed in range(200)])
    assert not flips[:, :5].any() and flips[:, 5:].float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(flips.view(200, -1, 5).all(2), flips.view(200, -1, 5).any(2))


def test_loader_gives_what_the_batches_hold(dataset):
    batches = Batches(dataset, shuffled(dataset, 50, torch.Generator()))
    state = torch.get_rng_state()
    found = list(loader(batches, dict(device='cpu')))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found) == 3
    for b, batch in enumerate(found):
        for one, other in zip(batch, batches[b], strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('processes', [1, 4])
def test_processes_and_parts_share_each_batch(dataset, processes, accumulate):
    order = shuffled(dataset, 50, torch.Generator(), processes=processes)
    shares = [Batches(dataset, order, None, rank, processes, accumulate) for rank in range(processes)]
    steps = [[[]] for _ in shares]  # of each process: a list of parts per step
    for own, share in zip(steps, shares, strict=True):
        for part in (share[b] for b in range(len(share))):
            own[-1].append(part)
            if part.ends_step:
                own.append([])
        assert own.pop() == [] and len(own) == len(order)
    for numbers, *parts in zip(order, *steps, strict=True):
        assert len({len(own) for own in parts}) == 1  # all meet equally often
        parts = sum(parts, [])
        assert len(parts) == processes * min(accumulate, len(numbers) // (2 * processes))
        assert torch.equal(torch.cat([part.numbers for part in parts]), numbers)
        assert min(len(part.numbers) for part in parts) >= 2
        assert {part.of_captions for part in parts} == {len(numbers)}
        assert {part.of_words for part in parts} == {sum(int((part.caplens - 1).sum()) for part in parts)}


@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('processes', [1, 4])
def test_a_picture_is_in_one_part_of_one_process(dataset, processes, accumulate):
    order = shuffled(dataset, 55, torch.Generator(), by_picture=True, processes=processes)
    assert [len(numbers) for numbers in order] == [55, 55, 10]  # the last has fewer pictures than there are processes
    shares = [Batches(dataset, order, None, rank, processes, accumulate, by_picture=True) for rank in range(processes)]
    found = [[], [], []]
    for share in shares:
        step = 0
        for part in (share[b] for b in range(len(share))):
            found[step].append(part)
            step += part.ends_step
        assert step == 3
    for numbers, parts in zip(order, found, strict=True):
        assert len(parts) % processes == 0  # all meet equally often
        assert torch.equal(torch.cat([part.numbers for part in parts]), numbers)
        if len(numbers) > 10 or processes == 1:
            assert sum(len(part.images) for part in parts) == len(numbers) // 5
            assert all(len(part.numbers) == 5 * len(part.images) for part in parts)
        assert min(len(part.numbers) for part in parts) >= 2


def test_pages_are_pinned_for_a_gpu_only(dataset):
    batches = Batches(dataset, [torch.arange(5)])
    for device, pinned in (('cpu', False), ('cuda:1', True)):
        assert loader(batches, dict(device=device)).pin_memory == pinned
    dataset.in_memory = SimpleNamespace(is_cuda=True)  # there already
    assert not loader(batches, dict(device='cuda')).pin_memory


def test_fewer_captions_than_processes_are_left_out(dataset):
    order = shuffled(dataset, 39, torch.Generator(), processes=4)  # 120 = 3 * 39 + 3
    assert [len(batch) for batch in order] == [39, 39, 39]
