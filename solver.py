"""Training and validation: the loop of the papers, with every setting visible.

>>> history = train(dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq'))
"""

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from lab.data.vocabulary import SPECIAL_TOKENS, load_word_map
from lab.decode.beam_search import greedy_search
from lab.decode.cider import CiderD
from lab.decode.metrics import bleu
from lab.more import word_vectors
from lab.more.self_critical import SelfCritical
from lab.more.settings import MoreSettings
from lab.train import batches, distributed
from lab.train.checkpoints import build_model, checkpoint_paths, decoder_name, save_checkpoint
from lab.train.forward import check_decoder, decode, encode, use_bf16, use_fast_forward
from lab.train.inputs import caption_datasets
from lab.train.resume import continues, fingerprints, move_aside, resume, start_from
from lab.train.settings import Count, Flag, Rate, Seed, Share, Text, WeightPerEpoch, complete, in_epoch
from utils import AverageMeter, atomic_path, best_epoch, seed_everything, topk_accuracy

# torch's own setting: on Linux it takes large tensors from large pages, which is faster
os.environ.setdefault('THP_MEM_ALLOC_ENABLE', '1')

DECAY_AFTER, DECAY, STOP_AFTER = 8, 0.8, 20  # epochs without a better greedy BLEU-4


@dataclass
class Settings:
    """Settings of the lab's training. Those of the improvements are in lab/more/settings.py."""
    # data
    data_folder: Text = 'data/shapes'   # folder with the files of create_input_files
    data_name: Text = 'shapes_5_cap_per_img_5_min_word_freq'  # base name of these files
    # model
    attention: Flag = True              # DecoderWithAttention, or DecoderWithRNN
    encoder: Text | None = 'resnet101'  # backbone, see lab/data/encoders.py
    encoder_weights: Text | None = 'DEFAULT'  # trained weights, None for random ones, or a file
    encoder_stride: Count | None = None  # cut the backbone at this stride
    encoded_image_size: Count | None = 14  # pool the grid to 14 x 14; None keeps the native one
    embed_dim: Count = 512              # length of a word vector
    attention_dim: Count = 512          # length of the vectors that attention compares
    decoder_dim: Count = 512            # length of the LSTM's hidden state
    dropout: Share = 0.5                # on the hidden state, before the vocabulary layer
    # training
    device: Text | None = None          # 'cuda', 'cpu', ...; None takes the GPU if there is one
    epochs: Count = 120                 # at most
    batch_size: Count = 32              # captions
    encoder_lr: Rate = 1e-4             # learning rates of Adam
    decoder_lr: Rate = 4e-4
    cosine: Flag = False                # let the rates fall to 0 over the epochs along a cosine (Loshchilov 2017)
    grad_clip: Rate | None = 5.0        # each gradient entry is clipped to +- this
    alpha_c: WeightPerEpoch = 1.0       # weight of the doubly stochastic penalty; (1.0, 0.0) falls over the epochs
    fine_tune_encoder: Flag = False     # train the encoder's blocks 2 to 4 as well
    cache_features: Flag = True         # a frozen encoder sees each picture once; False: in every batch
    fast: Flag = True                   # the same formulas with fewer operations, where your forward agrees
    seed: Seed = 0
    # files and output
    output_folder: Text = 'runs'        # checkpoints and history go here
    checkpoint: Text | None = None      # checkpoint of a training to go on with
    start_from: Text | None = None      # checkpoint whose weights a second training starts from
    print_freq: Count = 10              # batches between two updates of the progress bar's figures


DEFAULTS = {**asdict(Settings()), **asdict(MoreSettings())}


def check_settings(cfg):
    """Fill in the defaults and refuse what cannot be.

    :param cfg: dict of settings, see :class:`Settings`
    :return: complete dict with ``device`` decided
    :raises ValueError: an unknown setting, or an impossible value; the message names it
    """
    cfg = complete(cfg, Settings, MoreSettings)
    cfg['device'] = cfg['device'] or ('cuda' if torch.cuda.is_available() else 'cpu')
    if cfg['self_critical'] and not (cfg['start_from'] or cfg['checkpoint']):
        raise ValueError(f"setting 'self_critical' is {cfg['self_critical']!r}, which goes on from a trained decoder: "
                         'give its best checkpoint as start_from')
    return cfg


class EarlyStopping:
    """Stop when the best epoch lies ``patience`` epochs back."""

    def __init__(self, patience):
        self.patience = patience

    def __call__(self, history):
        return bool(history) and len(history) - best_epoch(history)['epoch'] >= self.patience


def train(cfg, encoder=None, loss=None):
    """Train a decoder (and, fine-tuning, the encoder) and leave checkpoints and history.

    Files in ``output_folder``: ``checkpoint_{data_name}_{NoAttention,Attention}.pth.tar`` after each epoch,
    ``BEST_checkpoint_{NoAttention,Attention}.pth.tar`` at the best greedy BLEU-4 so far (CIDEr, if self-critical), and
    ``history_{NoAttention,Attention}.json``. A training that was stopped goes on from ``checkpoint`` and ends with the
    same weights as one that was not. After the first epoch, files of another training of the same decoder are moved
    into ``output_folder/earlier_1`` (2, ...).

    :param cfg: settings, see :class:`Settings`
    :param encoder: a module of your own from (n, 3, H, W) to (n, channels, h, w); ``cfg['encoder']`` is ignored
    :param loss: a loss of your own in place of :func:`caption_loss`, in training and in validation:
        ``loss(scores, targets, alphas)`` gives the mean per word, a 0-dim tensor. The settings ``alpha_c`` and
        ``label_smoothing`` belong to ``caption_loss`` and have no effect on yours
    :return: history, a list with a dict per epoch
    :raises ValueError: settings or a checkpoint that cannot be
    :raises FloatingPointError: the loss is not a number any more
    :raises OSError: ``output_folder`` cannot be written
    """
    model, train_data, val_data, optimizers, schedulers, by_score = set_up(cfg, encoder)
    cfg, trained = model.settings, len(model.history)
    aim = 'CIDEr' if by_score else 'BLEU-4'
    stop = EarlyStopping(STOP_AFTER)
    for epoch in range(trained + 1, cfg['epochs'] + 1):
        if stop(model.history):
            distributed.log(f'No better {aim} for {STOP_AFTER} epochs: stop.')
            break
        start = time.perf_counter()
        train_scores = train_epoch(model, train_data, optimizers, epoch, loss, schedulers, by_score)
        val_scores = validate(model, val_data, loss)
        model.history.append(dict(
            epoch=epoch, train_loss=train_scores['loss'], train_top5=train_scores['top5'],
            **{f'val_{name}': value for name, value in val_scores.items()},
            decoder_lr=train_scores['decoder_lr'], seconds=time.perf_counter() - start))
        log_epoch(model.history[-1])
        if not cfg['cosine']:
            for scheduler in schedulers.values():
                scheduler.step(val_scores['greedy_cider' if by_score else 'greedy_bleu4'])
            rate = optimizers['decoder'].param_groups[0]['lr']
            if rate < train_scores['decoder_lr']:
                distributed.log(f'No better {aim} for {DECAY_AFTER} epochs: learning rate {rate:.2e}.')
        if distributed.rank() == 0:
            if epoch == trained + 1 and not continues(cfg):
                move_aside(cfg, history_path(cfg))
            save(model, optimizers, schedulers)
        distributed.wait_for_all()
    return model.history


def set_up(cfg, encoder=None):
    """All that :func:`train` needs.

    :param cfg, encoder: as for :func:`train`
    :return: model, training captions, validation captions, optimizers, schedulers, and ``SelfCritical`` or None
    """
    distributed.take_own_gpu(cfg.get('device'))
    cfg = check_settings(cfg if encoder is None else {**cfg, 'encoder': None})
    cfg['device'] = distributed.connect(cfg['device'], use_bf16(cfg))
    seed_everything(cfg['seed'])
    word_map = load_word_map(cfg['data_folder'], cfg['data_name'])
    model = build_model(cfg, word_map, encoder)
    model.encoder.fine_tune(cfg['fine_tune_encoder'])
    check_decoder(model.decoder, cfg)
    if cfg['start_from']:
        start_from(model, cfg['start_from'])
    elif cfg['fine_tune_encoder'] and not cfg['checkpoint']:
        distributed.log('The encoder is trained together with an untrained decoder: better train with it frozen '
                        'first, and go on from the best checkpoint (start_from).')
    word_vectors.set_up(model)
    for module in (model.encoder, model.decoder):
        distributed.same_weights(module)
    optimizers = make_optimizers(model)
    before = resume(model, optimizers, cfg['checkpoint']) if cfg['checkpoint'] else None
    if len(model.history) >= cfg['epochs']:
        distributed.log(f"{cfg['checkpoint']} has trained {len(model.history)} epochs already: raise epochs to go on.")
    train_data, val_data = caption_datasets(model, ['TRAIN', 'VAL'], in_memory=True)
    if cfg['captions']:
        train_data.replace_captions(cfg['captions'], word_map)
    model.fingerprints = before['fingerprints'] if before else fingerprints(cfg)
    schedulers = make_schedulers(model, optimizers, train_data, before)
    if cfg['decoder']:  # a mistake in start or step shows here, not after an epoch
        one = batches.Batches(val_data, [torch.tensor([0])])[0]
        greedy_search(model.decoder.eval(), encode(model, one.images, one.are_features), word_map, max_len=1)
    if cfg['fast']:
        use_fast_forward(model, train_data)
    model.decoder = distributed.share_batch_norm(model.decoder)
    word_vectors.add_dropout(model)
    by_score = None
    if cfg['self_critical']:
        by_score = SelfCritical(train_data.references, cfg['samples'], cfg['self_critical'], cfg['samples_dropout'])
    Path(cfg['output_folder']).mkdir(parents=True, exist_ok=True)
    return model, train_data, val_data, optimizers, schedulers, by_score


def make_optimizers(model):
    """Adam for the decoder and, if it is fine-tuned, for the encoder: dict name -> optimizer."""
    cfg = model.settings
    fused = torch.device(cfg['device']).type in ('cpu', 'cuda')  # one kernel for all parameters
    optimizers = {'decoder': torch.optim.AdamW([p for p in model.decoder.parameters() if p.requires_grad],
                                               lr=cfg['decoder_lr'], weight_decay=cfg['weight_decay'], fused=fused)}
    if cfg['fine_tune_encoder']:
        optimizers['encoder'] = torch.optim.Adam([p for p in model.encoder.parameters() if p.requires_grad],
                                                 lr=cfg['encoder_lr'], fused=fused)
    return optimizers


def make_schedulers(model, optimizers, dataset, before=None):
    """A scheduler for each optimizer: a cosine over all steps, or a lower rate where the score stays as it is.

    :param dataset: training captions
    :param before: the checkpoint that training goes on from, if it does
    :return: dict name -> scheduler
    """
    cfg = model.settings
    if cfg['cosine']:
        steps = batches.of_epoch(model, dataset, 1).steps
        half_cosine = lambda step: (1 + math.cos(math.pi * step / (steps * cfg['epochs']))) / 2
        for name, optimizer in optimizers.items():
            optimizer.param_groups[0]['initial_lr'] = cfg[f'{name}_lr']
        return {name: LambdaLR(optimizer, half_cosine, last_epoch=steps * len(model.history) - 1)
                for name, optimizer in optimizers.items()}
    schedulers = {name: ReduceLROnPlateau(optimizer, mode='max', factor=DECAY, patience=DECAY_AFTER - 1, threshold=0)
                  for name, optimizer in optimizers.items()}
    for name, scheduler in schedulers.items():
        if before and name in before['schedulers']:
            scheduler.load_state_dict(before['schedulers'][name])
    return schedulers


def train_epoch(model, dataset, optimizers, epoch, loss=None, schedulers=None, by_score=None):
    """One pass over the training captions.

    :param optimizers: dict name -> optimizer, of 'decoder' and perhaps 'encoder'
    :param loss: as for :func:`train`
    :param schedulers: dict name -> scheduler; with the setting ``cosine`` each makes a step after every batch
    :param by_score: ``self_critical.SelfCritical``, if the decoder learns from its own captions
    :return: dict with the mean ``loss`` per word, the ``top5`` accuracy in percent, and the last ``decoder_lr``
    :raises FloatingPointError: the loss is not a number any more
    """
    cfg = model.settings
    loss = loss or partial(caption_loss, alpha_c=in_epoch(cfg['alpha_c'], epoch, cfg['epochs']),
                           label_smoothing=cfg['label_smoothing'])
    teacher_forcing = in_epoch(cfg['teacher_forcing'], epoch, cfg['epochs'])
    model.encoder.train()  # what is frozen stays in eval(), see models.Encoder.train
    model.decoder.train()
    if distributed.rank() > 0:  # dropout of its own; the main process goes on with its random states
        seed_everything(((cfg['seed'] * 100_003 + epoch) * 1009 + distributed.rank()) % 2 ** 32)
    parts = batches.of_epoch(model, dataset, epoch)
    losses, top5, step = AverageMeter(), AverageMeter(), 0
    bar = distributed.progress_bar(batches.loader(parts, cfg), desc=f"epoch {epoch}/{cfg['epochs']}", unit='batch')
    for batch in bar:
        if by_score:
            value, shown = by_score.of_batch(model, batch, dataset.cpi)
            n, whole = len(batch.numbers), batch.of_captions
        else:
            decoded = decode(model, batch, teacher_forcing)
            value = shown = loss(decoded.scores, decoded.targets, decoded.alphas)
            n, whole = len(decoded.targets), batch.of_words
            top5.update(topk_accuracy(decoded.scores.detach(), decoded.targets, 5), n)
        losses.update(shown.detach(), n)
        (value * (n / whole)).backward()  # the batch may be a part of the step: of its words, or captions
        if not batch.ends_step:
            continue

        decoder_lr = optimizers['decoder'].param_groups[0]['lr']
        update(model, optimizers, schedulers)
        # asking for a value makes a GPU's queue run dry, so not after every step
        if step % cfg['print_freq'] == 0 or step == parts.steps - 1:
            if not math.isfinite(losses.avg):
                raise FloatingPointError(f'the loss is {float(losses.val)} in epoch {epoch}, batch {step}: lower '
                                         'decoder_lr, or look for a division or logarithm in your decoder or loss')
            bar.set_postfix(loss=f'{losses.avg:.3f}', **dict(top5=f'{top5.avg:.1f}%') if top5.count else {})
        step += 1
    distributed.same_buffers(model.decoder)
    return dict(**distributed.averages(loss=losses, top5=top5), decoder_lr=decoder_lr)


def update(model, optimizers, schedulers=None):
    """Clip the gradients, make a step of each optimizer and, along a cosine, of its scheduler."""
    for name, optimizer in optimizers.items():
        parameters = optimizer.param_groups[0]['params']
        distributed.sum_gradients(parameters)
        if model.settings['grad_clip']:
            nn.utils.clip_grad_value_(parameters, model.settings['grad_clip'])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if model.settings['cosine']:
            schedulers[name].step()


def caption_loss(scores, targets, alphas=None, alpha_c=0.0, label_smoothing=0.0):
    """Cross-entropy per word, plus the doubly stochastic penalty if the decoder attends.

    L = -log p(y | x) + alpha_c * sum over pixels of (1 - sum over words of alpha)^2
    (*Show, Attend and Tell*, eq. 14; the mean over pixels and captions is taken here).

    :param scores: (words, vocab_size) before softmax, of all true words of a batch: nothing for padding
    :param targets: (words,) long, the true words
    :param alphas: (batch_size, steps, num_pixels), zero past a caption's end; None without attention
    :param alpha_c: weight of the penalty
    :param label_smoothing: share of each target that is spread over all words
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
def validate(model, dataset, loss=None):
    """Loss, top-5 accuracy and BLEU-4 on a validation split.

    ``bleu4`` is teacher-forced: each word is guessed after the *true* words before it, which no caption of a new
    picture can have. ``greedy_bleu4`` lets the decoder read its own words, each image once.

    :param loss: as for :func:`train`
    :return: dict with ``loss``, ``cross_entropy`` (the loss without the penalty of attention, to compare decoders),
        ``top5`` (percent), ``bleu4``, ``greedy_bleu4`` (0 to 1), ``greedy_cider`` (0 to 10)
    """
    cfg, word_map = model.settings, model.word_map
    loss = loss or partial(caption_loss, alpha_c=in_epoch(cfg['alpha_c'], cfg['epochs'], cfg['epochs']))
    special = {word_map[word] for word in SPECIAL_TOKENS}
    model.encoder.eval()
    model.decoder.eval()
    losses, cross_entropy, top5 = AverageMeter(), AverageMeter(), AverageMeter()

    def own_batches(what, captions=None):  # the batches of this process
        order = batches.in_order(dataset, cfg['batch_size'], captions)[distributed.rank()::distributed.count()]
        return distributed.progress_bar(batches.loader(batches.Batches(dataset, order), cfg), desc=what, unit='batch',
                                        leave=False)

    forced, greedy = [], []  # (number of the caption, its words)
    for batch in own_batches('validate'):
        decoded = decode(model, batch)
        words = len(decoded.targets)
        losses.update(loss(decoded.scores, decoded.targets, decoded.alphas), words)
        cross_entropy.update(nn.functional.cross_entropy(decoded.scores, decoded.targets), words)
        top5.update(topk_accuracy(decoded.scores, decoded.targets, 5), words)
        rows, lengths = pad_packed_sequence(PackedSequence(decoded.scores.argmax(dim=1), decoded.sizes),
                                            batch_first=True)
        numbers = batch.numbers[decoded.sort_ind.cpu()].tolist()  # the decoder has sorted the batch
        for number, row, length in zip(numbers, rows.tolist(), lengths.tolist(), strict=True):
            forced.append((number, model.words(word for word in row[:length] if word not in special)))
    for batch in own_batches('greedy captions', torch.tensor(dataset.first_captions)):
        captions = greedy_search(model.decoder, encode(model, batch.images, batch.are_features), word_map)
        greedy += [(number, model.words(caption.words))
                   for number, caption in zip(batch.numbers.tolist(), captions, strict=True)]

    # in the order of the captions, whichever process had them
    forced, greedy = (sorted(distributed.gather(captions)) for captions in (forced, greedy))
    bleu4, greedy_bleu4 = (bleu([dataset.references[number // dataset.cpi] for number, _ in captions],
                                [words for _, words in captions])['BLEU-4'] for captions in (forced, greedy))
    return dict(**distributed.averages(loss=losses, cross_entropy=cross_entropy, top5=top5), bleu4=bleu4,
                greedy_bleu4=greedy_bleu4,
                greedy_cider=CiderD(dataset.references).score([words for _, words in greedy]))


def log_epoch(scores):
    """Print an entry of the history."""
    distributed.log(f" * LOSS - {scores['val_loss']:.3f}, TOP-5 ACCURACY - {scores['val_top5']:.3f}, "
                    f"BLEU-4 - {scores['val_bleu4']:.3f}, GREEDY BLEU-4 - {scores['val_greedy_bleu4']:.3f}, "
                    f"CIDER - {scores['val_greedy_cider']:.3f}   "
                    f"(epoch {scores['epoch']}, {scores['seconds']:.0f} s)")


def save(model, optimizers, schedulers):
    """Write the checkpoint of the latest epoch and the history, and the best checkpoint if that epoch is the best."""
    latest, best = checkpoint_paths(model.settings)
    improved = best_epoch(model.history) is model.history[-1]
    save_checkpoint([best, latest] if improved else [latest], model, optimizers, schedulers)
    with atomic_path(history_path(model.settings)) as temporary:
        temporary.write_text(json.dumps(model.history, indent=1))


def history_path(cfg):
    return Path(cfg['output_folder']) / f'history_{decoder_name(cfg)}.json'
