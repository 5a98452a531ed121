"""Self-critical sequence training (Rennie et al. 2017, arXiv 1612.00563): learn from the score of one's own captions.

The loss is L = -E[r(w)], the expected CIDEr-D of captions w drawn from the decoder (eq. 3). Its gradient is

    grad L = -E[(r(w) - b) grad log p(w)]                                  (eqs. 5 and 6)

where the baseline b is the score of the caption that greedy decoding finds ('greedy', the paper's choice, eq. 9), or
the mean score of the other captions drawn for the same picture ('mean'; Luo 2020, arXiv 2003.09971). What scores above
the baseline becomes more probable, what scores below less.
"""

import torch
from torch import nn

from lab.decode.cider import CiderD
from lab.decode.greedy_search import excluded_words, greedy_search, sample_search
from lab.train.batches import Batch, training_loader, weights_of
from lab.train.devices import averages, progress_bar
from utils import AverageMeter, evaluating

SAMPLES = 5  # captions drawn per picture
END_WORD = ['<end>']  # counts as a word in CIDEr-D, else captions learn to break off


def train_epoch(run, epoch, scorers):
    """One pass over the training pictures, in the place of ``solver.train_epoch``.

    :param run: ``solver.Run``
    :param scorers: :func:`scorers_of` the training captions
    :return: dict with ``loss``, minus the mean CIDEr-D of the captions drawn, and ``top5``, None
    :raises FloatingPointError: the decoder's scores are not numbers
    """
    model, accelerator = run.model, run.accelerator
    model.train()
    loader = training_loader(run.train_data, model.settings, epoch)
    weights = weights_of(run.train_data, loader, model.settings)  # 1 unless gradients are accumulated
    losses = AverageMeter()
    bar = progress_bar(accelerator.prepare(loader), desc=f"epoch {epoch}/{model.settings['epochs']}", unit='batch')
    for number, batch in enumerate(bar):
        with accelerator.accumulate(run.wrapped):
            with accelerator.autocast():
                encoder_out = model.encode(batch.images)
                pictures = (batch.numbers // run.train_data.cpi).unique()
                of_languages = [loss_in_language(model, run.wrapped, encoder_out, pictures, word_map, scorer)
                                for word_map, scorer in scorers]
                loss, reward = (torch.stack(values).mean(dim=0) for values in zip(*of_languages, strict=True))
            accelerator.backward(loss * weights[number])
            run.step()
        losses.update(-reward.mean(), len(reward))
        bar.set_postfix(loss=f'{losses.avg:.3f}')
    return averages(loss=losses, top5=AverageMeter())


def scorers_of(dataset):
    """For each language of a ``CaptionDataset`` its vocabulary, and CIDEr-D against its captions, in which <end> counts
    as a word."""
    return [(own.word_map, CiderD([[words + END_WORD for words in those] for those in own.references]))
            for own in dataset.by_language()]


def loss_in_language(model, wrapped, encoder_out, pictures, word_map, scorer):
    """Draw captions of a batch's pictures in one language, and learn from their scores.

    :param model: ``model.CaptionModel``
    :param wrapped: the same as ``accelerate`` has prepared it
    :param encoder_out: (pictures, h, w, encoder_dim)
    :param pictures: (pictures,) long, their numbers
    :param word_map, scorer: of this language, see :func:`scorers_of`
    :return: surrogate loss, whose gradient is an unbiased estimate of that of L (0-dim); the samples' scores
        (pictures, samples)
    """
    k = SAMPLES
    # drawn by the decoder as it captions, without dropout
    drawn = sample_search(model.decoder, encoder_out.detach(), word_map, samples=k)
    reward = rewards(model, scorer, drawn, pictures.repeat_interleave(k)).view(-1, k)
    greedy_reward = None
    if model.settings['self_critical'] == 'greedy':
        greedy_reward = rewards(model, scorer, greedy_search(model.decoder, encoder_out.detach(), word_map), pictures)
    with evaluating(model.decoder):
        for module in model.decoder.modules():
            if isinstance(module, nn.RNNBase):
                module.train()  # cuDNN has no gradient for it in eval()
        log_p = log_probabilities(wrapped, word_map, encoder_out, drawn).view(-1, k)
    return surrogate_loss(log_p, reward, greedy_reward, torch.full((len(pictures),), 1 / len(pictures))), reward


def rewards(model, scorer, hypotheses, pictures):
    """
    :param pictures: (len(hypotheses),) long, the picture of each
    :return: (len(hypotheses),) CIDEr-D
    """
    captions = [model.words(one.words) + END_WORD * one.finished for one in hypotheses]
    return torch.tensor([scorer.score(*pair) for pair in zip(pictures.tolist(), captions, strict=True)])


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


def log_probabilities(wrapped, word_map, encoder_out, hypotheses):
    """log p of captions, with gradient, in one pass of teacher forcing.

    :param encoder_out: (n, h, w, encoder_dim); ``hypotheses``: as many for each picture, m in all
    :return: (m,)
    """
    start, end = word_map['<start>'], word_map['<end>']
    rows = [torch.tensor([start, *one.words, *[end] * one.finished]) for one in hypotheses]
    captions = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    image_of = torch.arange(len(encoder_out)).repeat_interleave(len(rows) // len(encoder_out))
    lengths = torch.tensor([len(row) for row in rows])
    decoded = wrapped(Batch(None, image_of, captions, lengths, None), encoder_out=encoder_out)
    scores = decoded.scores.clone()
    scores[:, excluded_words(word_map)] = -torch.inf  # what is never drawn has no probability here either
    log_p = scores.log_softmax(dim=1).gather(1, decoded.targets.unsqueeze(1)).squeeze(1)
    owner = decoded.positions()[:, 0].to(log_p.device)
    return log_p.new_zeros(len(rows)).index_add(0, owner, log_p)
