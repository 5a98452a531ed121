"""Self-critical sequence training (Rennie et al. 2017, arXiv 1612.00563): learn from the score of one's own captions.

The loss is L = -E[r(w)], the expected CIDEr-D of captions w drawn from the decoder (eq. 3). Its gradient is

    grad L = -E[(r(w) - b) grad log p(w)]                                  (eqs. 5 and 6)

where the baseline b is the score of the caption that greedy decoding finds ('greedy', the paper's choice, eq. 9), or
the mean score of the other captions drawn for the same picture ('mean'; Luo 2020, arXiv 2003.09971). What scores above
the baseline becomes more probable, what scores below less.
"""

from contextlib import contextmanager

import torch
from torch import nn

from lab.decode.beam_search import greedy_search, never_said, sample_search
from lab.decode.cider import CiderD
from lab.train.forward import encode, forward, half_precision

BASELINES = 'greedy', 'mean'
END = ['<end>']  # counts as a word here, else captions learn to break off


class SelfCritical:
    """The loss on a training set.

    :param references: per picture a list of captions, each a list of words
    :param samples: captions drawn per picture
    :param baseline: 'greedy' or 'mean'
    :param dropout: whether grad log p(w) is that of a decoder with dropout. The captions are drawn without, so the
        gradient is no longer quite that of eq. 5; but less is learned by heart
    """

    def __init__(self, references, samples, baseline, dropout=False):
        self.scorer = CiderD([[words + END for words in those] for those in references])
        self.samples, self.baseline, self.dropout = samples, baseline, dropout

    def __call__(self, model, encoder_out, pictures, weights):
        """
        :param model: ``checkpoints.CaptionModel``
        :param encoder_out: (n, h, w, encoder_dim) encoded pictures
        :param pictures: (n,) their numbers among the references
        :param weights: (n,) how much each counts
        :return: surrogate loss, whose gradient is an unbiased estimate of that of L; L as the samples have it (both
            0-dim)
        """
        k, word_map = self.samples, model.word_map
        # drawn by the decoder as it captions, without dropout
        drawn = sample_search(model.decoder, encoder_out.detach(), word_map, samples=k)
        reward = self.rewards(model, drawn, pictures.repeat_interleave(k)).view(-1, k)
        greedy_reward = None
        if self.baseline == 'greedy':
            greedy = greedy_search(model.decoder, encoder_out.detach(), word_map)
            greedy_reward = self.rewards(model, greedy, pictures)
        owners = torch.arange(len(pictures)).repeat_interleave(k)
        log_p = log_probabilities(model, encoder_out, drawn, owners, self.dropout).view(-1, k)
        return surrogate_loss(log_p, reward, greedy_reward, weights), -(reward.mean(dim=1) * weights).sum()

    def of_batch(self, model, batch, captions_per_image):
        """The loss on a batch's pictures; one counts as often as it has captions in the batch.

        :param batch: ``batches.Batch``
        :return: as of a call
        """
        number = torch.empty(len(batch.images), dtype=torch.long)
        number[batch.image_of] = batch.numbers // captions_per_image
        weights = batch.image_of.bincount(minlength=len(batch.images)) / len(batch.numbers)
        with half_precision(model.settings):
            return self(model, encode(model, batch.images, batch.are_features), number, weights)

    def rewards(self, model, hypotheses, pictures):
        """:return: (len(hypotheses),) CIDEr-D"""
        captions = [model.words(one.words) + END * one.finished for one in hypotheses]
        return torch.from_numpy(self.scorer.scores(pictures.numpy(), captions)).float()


def surrogate_loss(log_p, reward, greedy_reward, weights):
    """Minus the sum over the pictures of weight * mean over the samples of (r(w) - b) log p(w): its gradient is what
    eqs. 5 and 6 give for these samples, an unbiased estimate of that of L.

    :param log_p: (n, samples) log-probabilities of the captions drawn for n pictures, with gradient; on the decoder's
        device, the others on the CPU
    :param reward: (n, samples) their CIDEr-D
    :param greedy_reward: (n,) that of the greedy captions, the baseline; None: the mean of the *other* samples is
    :param weights: (n,) how much each picture counts
    :return: 0-dim
    """
    # TODO 12: surrogate_loss
    #   1. the baseline b: greedy_reward, for all samples of a picture                  (n, 1)
    #      or, where there is none, for each sample the mean reward of the others       (n, samples)
    #   2. advantage = reward - b; it is a number: no gradient goes through it. It must come to log_p.device, and the
    #      weights as well
    #   3. minus the mean over the samples of advantage * log_p, and the sum over the pictures, each times its weight
    ### BEGIN SOLUTION
    if greedy_reward is None:
        baseline = (reward.sum(dim=1, keepdim=True) - reward) / (reward.shape[1] - 1)
    else:
        baseline = greedy_reward.unsqueeze(1)
    advantage = ((reward - baseline) * weights.unsqueeze(1) / reward.shape[1]).to(log_p.device)
    return -(advantage * log_p).sum()
    ### END SOLUTION


def log_probabilities(model, encoder_out, hypotheses, image_of, dropout=False):
    """log p of captions, with gradient, in one pass of teacher forcing.

    :param encoder_out: (n, h, w, encoder_dim); ``hypotheses``: m of them; ``image_of``: (m,) the picture of each
    :param dropout: as the decoder has it in training; False: none
    :return: (m,)
    """
    start, end, device = model.word_map['<start>'], model.word_map['<end>'], encoder_out.device
    rows = [[start, *one.words, *[end] * one.finished] for one in hypotheses]
    lengths = torch.tensor([len(row) for row in rows])
    captions = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for caption, row in zip(captions, rows, strict=True):
        caption[:len(row)] = torch.tensor(row)
    with reading(model.decoder, dropout):
        decoded = forward(model, encoder_out, captions, lengths, image_of)
    # the words that are never drawn have no probability here either
    scores = decoded.scores.float().index_fill(1, never_said(model.word_map, device), -torch.inf)
    log_p = scores.log_softmax(dim=1).gather(1, decoded.targets.unsqueeze(1)).squeeze(1)
    # a packed sequence holds, step by step, the captions that are still running: the first so many
    owner = torch.cat([torch.arange(size) for size in decoded.sizes.tolist()]).to(device)
    return log_p.new_zeros(len(hypotheses)).index_add(0, decoded.sort_ind[owner].to(device), log_p)


@contextmanager
def reading(decoder, dropout):
    """In the block batch norm uses its running statistics; without ``dropout`` the decoder drops nothing, not even
    entries of its word vectors."""
    decoder.train()
    changed = [module for module in decoder.modules() if isinstance(module, nn.Dropout) and not dropout]
    before = [module.p for module in changed]
    for module in changed:
        module.p = 0.0
    for module in decoder.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or isinstance(module, nn.Embedding) and not dropout:
            module.eval()
    try:
        yield
    finally:
        for module, p in zip(changed, before, strict=True):
            module.p = p
        decoder.train()
