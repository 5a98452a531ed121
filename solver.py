"""Training and validation: the loop of the papers. All settings are in lab/train/settings.py.

>>> history = train(dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq'))
"""

import inspect
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from datasets import CaptionDataset
from lab.data.vocabulary import is_special, load_word_map
from lab.decode.bleu import bleu
from lab.decode.greedy_search import greedy_search
from lab.decode.metrics import same_caption, scores_of
from lab.decode.monitor import greedy_scores, metric_of
from lab.more import self_critical, word_vectors
from lab.train import batches
from lab.train.checkpoints import checkpoint_paths, save_checkpoint
from lab.train.devices import accelerator_for, averages, log, progress_bar
from lab.train.features import caption_dataset
from lab.train.model import CaptionModel, build_model
from lab.train.resume import fingerprints, move_aside, resume, start_from
from lab.train.settings import DEFAULTS, check_settings, in_epoch  # noqa: F401
from utils import AverageMeter, best_epoch, epoch_line, monitored, topk_accuracy, write_json

DECAY_AFTER, DECAY, STOP_AFTER = 8, 0.8, 20  # epochs without a better score


@dataclass
class Run:
    """What a training works with."""
    accelerator: Accelerator
    model: CaptionModel
    wrapped: nn.Module  # the model as accelerate has prepared it, for several devices
    train_data: CaptionDataset
    val_data: CaptionDataset
    optimizer: torch.optim.Optimizer
    scheduler: object
    loss: object = None  # as for train

    def step(self):
        """Clip the gradients of all groups, then make a step of the optimizer and, along a cosine, the scheduler."""
        cfg = self.model.settings
        if cfg['grad_clip'] and self.accelerator.sync_gradients:
            self.accelerator.clip_grad_value_(self.model.parameters(), cfg['grad_clip'])
        self.optimizer.step()
        if cfg['cosine']:
            self.scheduler.step()
        self.optimizer.zero_grad()


def train(cfg, encoder=None, loss=None, optimizer=None):
    """Train a decoder (and, fine-tuning, the encoder) and save checkpoints and history.

    Files in ``output_folder``: ``checkpoint_{data_name}_{NoAttention,Attention}.pth.tar`` after each epoch,
    ``BEST_checkpoint_{NoAttention,Attention}.pth.tar`` at the best score so far (setting ``monitor``), and
    ``history_{NoAttention,Attention}.json``. A training that was stopped goes on from ``checkpoint`` and ends with the
    same weights as one that was not. After the first epoch, files of another training of the same decoder are moved
    into ``output_folder/earlier_1`` (2, ...).

    :param cfg: settings, see :class:`Settings`
    :param encoder: a module of your own from (n, 3, H, W) to (n, channels, h, w); ``cfg['encoder']`` is ignored
    :param loss: a loss of your own in place of :func:`caption_loss`, in training and in validation:
        ``loss(scores, targets, alphas)`` gives the mean per word, a 0-dim tensor. One with a parameter ``positions``
        also gets (words, 2) long: for each word the number of its caption in the data set, and its position in the
        caption, 0 for the first word after <start>. Validation calls it without gradients.
        The settings ``alpha_c`` and ``label_smoothing`` have no effect on it. Self-critical training has a loss of its
        own and calls this one in validation only
    :param optimizer: a function of your own from groups of parameters to an optimizer, see :func:`make_optimizer`:
        ``lambda groups: torch.optim.SGD(groups, momentum=0.9)``, with a far higher ``decoder_lr`` than Adam's
    :return: history, a list with a dict per epoch
    :raises ValueError: settings or a checkpoint that cannot be
    :raises FloatingPointError: the loss is not a number any more
    :raises OSError: ``output_folder`` cannot be written
    """
    run = make_run(cfg, encoder, loss, optimizer)
    model, cfg = run.model, run.model.settings
    one_epoch = train_epoch
    trained = len(model.history)
    if cfg['self_critical']:
        one_epoch = partial(self_critical.train_epoch, scorers=self_critical.scorers_of(run.train_data))
    for epoch in range(trained + 1, cfg['epochs'] + 1):
        if model.history and len(model.history) - best_epoch(model.history)['epoch'] >= STOP_AFTER:
            log(f"No better {cfg['monitor']} for {STOP_AFTER} epochs: stop.")
            break
        start = time.perf_counter()
        rate = run.optimizer.param_groups[0]['lr']
        if not run.accelerator.is_main_process:  # draws of its own; the main process goes on with its random states
            set_seed(cfg['seed'] * 100_003 + epoch, device_specific=True)
        train_scores, val_scores = one_epoch(run, epoch), validate(run)
        model.history.append(dict(
            epoch=epoch, monitor=cfg['monitor'], train_loss=train_scores['loss'], train_top5=train_scores['top5'],
            **{f'val_{name}': value for name, value in val_scores.items()},
            decoder_lr=rate, seconds=time.perf_counter() - start))
        log(epoch_line(model.history[-1]))
        if not cfg['cosine']:
            run.scheduler.step(monitored(model.history[-1]))
            if (lower := run.optimizer.param_groups[0]['lr']) < rate:
                log(f"No better {cfg['monitor']} for {DECAY_AFTER} epochs: learning rate {lower:.2e}.")
        if run.accelerator.is_main_process:
            if epoch == trained + 1:
                move_aside(cfg)
            latest, best = checkpoint_paths(cfg)
            improved = best_epoch(model.history) is model.history[-1]
            save_checkpoint([best, latest] if improved else [latest], model, run.optimizer, run.scheduler)
            write_json(best.with_name(f'history_{model.name}.json'), model.history)
        run.accelerator.wait_for_everyone()
    return model.history


def make_run(cfg, encoder=None, loss=None, optimizer=None):
    """All that :func:`train` needs, from the same arguments: a :class:`Run`."""
    cfg = check_settings(cfg if encoder is None else {**cfg, 'encoder': None})
    accelerator = accelerator_for(cfg)
    cfg['device'] = str(accelerator.device)  # of several GPUs the one of this process
    set_seed(cfg['seed'])
    model = build_model(cfg, load_word_map(cfg['data_folder'], cfg['data_name']), encoder)
    model.encoder.fine_tune(cfg['fine_tune_encoder'])
    if cfg['start_from']:
        start_from(model, cfg['start_from'])
    elif cfg['fine_tune_encoder'] and not cfg['checkpoint']:
        log('The encoder is trained together with an untrained decoder: better train with it frozen first, and go on '
            'from the best checkpoint (start_from).')
    word_vectors.load_named(model)
    built = make_optimizer(model, optimizer)
    before = resume(model, built, cfg['checkpoint']) if cfg['checkpoint'] else None
    train_data, val_data = (caption_dataset(model, split) for split in ('TRAIN', 'VAL'))
    metric = metric_of(cfg['monitor'], val_data.references_in)
    own = dict(loss=loss, optimizer=optimizer, metric=metric)
    model.fingerprints = before['fingerprints'] if before else fingerprints(cfg, **own)
    scheduler = make_scheduler(built, cfg, train_data, len(model.history))
    if before and not cfg['cosine']:
        scheduler.load_state_dict(before['scheduler'])
    few = batches.collate(train_data, torch.linspace(0, len(train_data) - 1, 8).long())
    model.eval()  # dropout would use up random numbers
    if cfg['decoder']:  # a mistake in start or step shows here, not after an epoch
        greedy_search(model.decoder, model.encode(few.images), model.vocabulary, max_len=1)
    elif cfg['fast']:
        log(model.use_fast_forward(few))
    word_vectors.add_dropout(model)
    Path(cfg['output_folder']).mkdir(parents=True, exist_ok=True)
    wrapped, optimizer, scheduler = accelerator.prepare(model, built, scheduler)
    return Run(accelerator, model, wrapped, train_data, val_data, optimizer, scheduler, loss)


def make_optimizer(model, make=None):
    """Adam for the decoder and, if it is fine-tuned, for the encoder: a group of parameters each.

    :param make: a function of your own from these groups to an optimizer; a group is a dict of name, params and lr
    """
    cfg = model.settings
    rates = dict(decoder=cfg['decoder_lr'], encoder=cfg['encoder_lr'])
    groups = [dict(name=name, params=[p for p in getattr(model, name).parameters() if p.requires_grad], lr=lr)
              for name, lr in rates.items()]
    fused = torch.device(cfg['device']).type in ('cpu', 'cuda')  # one kernel for all parameters
    return (make or partial(torch.optim.Adam, fused=fused))([group for group in groups if group['params']])


def make_scheduler(optimizer, cfg, dataset, trained=0):
    """A cosine over all steps, or lower rates where the score stays as it is.

    :param dataset: training captions
    :param trained: epochs that are done already
    """
    if not cfg['cosine']:
        return ReduceLROnPlateau(optimizer, mode='max', factor=DECAY, patience=DECAY_AFTER - 1, threshold=0)
    steps = math.ceil(len(batches.training_loader(dataset, cfg, 1)) / cfg['accumulate'])
    for group in optimizer.param_groups:
        group.setdefault('initial_lr', group['lr'])  # of the first step; a checkpoint brings it along
    half_cosine = lambda step: (1 + math.cos(math.pi * step / (steps * cfg['epochs']))) / 2
    return LambdaLR(optimizer, half_cosine, last_epoch=steps * trained - 1)


def train_epoch(run, epoch):
    """One pass over the training captions.

    :return: dict with the mean ``loss`` per word and the ``top5`` accuracy in percent
    :raises FloatingPointError: the loss is not a number any more
    """
    model, accelerator, cfg = run.model, run.accelerator, run.model.settings
    loss = run.loss or partial(caption_loss, alpha_c=in_epoch(cfg['alpha_c'], epoch, cfg['epochs']),
                               label_smoothing=cfg['label_smoothing'])
    teacher_forcing = in_epoch(cfg['teacher_forcing'], epoch, cfg['epochs'])
    model.train()  # what is frozen stays in eval(), see models.Encoder.train
    loader = batches.training_loader(run.train_data, cfg, epoch)
    weights = batches.weights_of(run.train_data, loader, cfg)  # 1 unless gradients are accumulated
    losses, top5 = AverageMeter(), AverageMeter()
    bar = progress_bar(accelerator.prepare(loader), desc=f"epoch {epoch}/{cfg['epochs']}", unit='batch')
    for number, batch in enumerate(bar):
        with accelerator.accumulate(run.wrapped):
            decoded = run.wrapped(batch, teacher_forcing)
            value = loss_of(loss, decoded, batch)
            accelerator.backward(value * weights[number])
            run.step()
        losses.update(value.detach(), len(decoded.targets))
        top5.update(topk_accuracy(decoded.scores.detach(), decoded.targets, 5), len(decoded.targets))
        # asking for a value makes a GPU's queue run dry, so not after every batch
        if number % 10 == 0 or number == len(loader) - 1:
            if not math.isfinite(losses.avg):
                raise FloatingPointError(f'the loss is {float(losses.avg)} in epoch {epoch}, batch {number}: lower '
                                         'decoder_lr, or look for a division or logarithm in your decoder or loss')
            bar.set_postfix(loss=f'{losses.avg:.3f}', top5=f'{top5.avg:.1f}%')
    return averages(loss=losses, top5=top5)


def loss_of(loss, decoded, batch):
    """The loss of a batch; one that has a parameter ``positions`` learns which word is which."""
    if 'positions' not in inspect.signature(getattr(loss, 'forward', loss)).parameters:
        return loss(decoded.scores, decoded.targets, decoded.alphas)
    positions = decoded.positions()
    positions[:, 0] = batch.numbers[positions[:, 0]]
    return loss(decoded.scores, decoded.targets, decoded.alphas, positions=positions)


def caption_loss(scores, targets, alphas=None, alpha_c=0.0, label_smoothing=0.0):
    """Cross-entropy per word, plus the doubly stochastic penalty if the decoder attends.

    L = -log p(y | x) + alpha_c * sum over pixels of (1 - sum over words of alpha)^2
    (*Show, Attend and Tell*, eq. 14; the mean over pixels and captions is taken here).

    :param scores: (words, vocab_size) before softmax, of all true words of a batch: nothing for padding
    :param targets: (words,) long, the true words
    :param alphas: (batch_size, steps, num_pixels), zero past a caption's end; None without attention
    :param alpha_c: weight of the penalty
    :param label_smoothing: probability of each target that is spread over all words
    :return: 0-dim
    """
    loss = nn.functional.cross_entropy(scores, targets, label_smoothing=label_smoothing)
    if alphas is not None:
        loss = loss + alpha_c * doubly_stochastic_penalty(alphas)
    return loss


def doubly_stochastic_penalty(alpha):
    """(1 - sum over words of alpha)^2, the mean over pixels and captions (*Show, Attend and Tell*, eq. 14).

    :param alpha: (batch_size, steps, num_pixels)
    :return: 0-dim
    """
    return ((1 - alpha.sum(dim=1)) ** 2).mean()


@torch.no_grad()
def validate(run):
    """Loss, top-5 accuracy and the scores of captions on the validation split.

    ``bleu4`` is teacher-forced: each word is guessed after the *true* words before it, which no caption of a new
    picture can have. For ``greedy_bleu4`` and the like the decoder reads its own words, each image once.

    :return: dict with ``loss``, ``cross_entropy`` (the loss without the penalty of attention, to compare decoders),
        ``top5`` (percent), ``bleu4``, and the scores of ``monitor.greedy_scores``
    """
    model, cfg = run.model, run.model.settings
    dataset, gather = run.val_data, run.accelerator.gather_for_metrics
    loss = run.loss or partial(caption_loss, alpha_c=in_epoch(cfg['alpha_c'], cfg['epochs'], cfg['epochs']))
    special = {index for word, index in model.word_map.items() if is_special(word)}
    model.eval()
    losses, cross_entropy, top5 = AverageMeter(), AverageMeter(), AverageMeter()

    def batches_of(numbers, batch_size, desc):
        loader = batches.loader(dataset, numbers, batch_size)
        return progress_bar(run.accelerator.prepare(loader), desc=desc, unit='batch', leave=False)

    forced, greedy = [], {}  # captions, in the order of the data set; scores by language
    # the captions of a picture are in one batch if they fit
    whole_pictures = max(cfg['batch_size'] // dataset.cpi, 1) * dataset.cpi
    for batch in batches_of(torch.arange(len(dataset)), whole_pictures, desc='validate'):
        decoded = run.wrapped(batch)
        words = len(decoded.targets)
        losses.update(loss_of(loss, decoded, batch), words)
        cross_entropy.update(nn.functional.cross_entropy(decoded.scores, decoded.targets), words)
        top5.update(topk_accuracy(decoded.scores, decoded.targets, 5), words)
        forced += gather([model.words(word for word in caption if word not in special)
                          for caption in decoded.guesses()], use_gather_object=True)
    for own in dataset.by_language():
        captions = []
        for batch in batches_of(torch.arange(0, len(own), own.cpi), cfg['batch_size'], desc='greedy captions'):
            found = greedy_search(model.decoder, model.encode(batch.images), own.word_map)
            captions += gather([model.words(caption.words) for caption in found], use_gather_object=True)
        if len(model.history) >= 2 and (warning := same_caption(captions)):  # at first that is normal
            log(f'{own.language or ""} {warning}'.strip())
        greedy[own.language] = scores_of(own.references, captions)

    references = [dataset.references_in[dataset.language_of(i)][i // dataset.cpi] for i in range(len(dataset))]
    return averages(loss=losses, cross_entropy=cross_entropy, top5=top5) | dict(
        bleu4=bleu(references, forced)['BLEU-4'], **greedy_scores(greedy))
