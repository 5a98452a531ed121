"""Training and validation: one loop, every setting visible.

>>> history = train(dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq'))
"""

import difflib
import inspect
import itertools
import json
import math
import os
import shutil
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from datasets import content_digest
from lab.data.locks import locked
from lab.data.vocabulary import SPECIAL_TOKENS, load_word_map
from lab.decode.beam_search import greedy_search
from lab.decode.cider import CiderD
from lab.decode.metrics import bleu
from lab.more import word_vectors
from lab.more.self_critical import BASELINES, SelfCritical
from lab.train import batches, distributed, fast
from lab.train.checkpoints import (
    build_model,
    checkpoint_paths,
    decoder_name,
    file_digest,
    read_checkpoint,
    restore_model,
    restore_random_states,
    save_checkpoint,
)
from lab.train.inputs import caption_datasets, encode, half_precision, use_bf16
from lab.train.source import code_digest
from utils import AverageMeter, atomic_path, best_epoch, packed, seed_everything, topk_accuracy

# torch's own setting: on Linux it takes large tensors from large pages, which are the sooner there
os.environ.setdefault('THP_MEM_ALLOC_ENABLE', '1')

DEFAULTS = dict(
    # data
    data_folder='data/shapes',      # folder with the files of create_input_files
    data_name='shapes_5_cap_per_img_5_min_word_freq',  # base name of these files
    # model
    attention=True,                 # DecoderWithAttention, or DecoderWithRNN
    decoder=None,                   # another class in their place, such as 'my_decoder.MyDecoder'
    decoder_options={},             # what that class takes besides the sizes below, such as dict(heads=4)
    encoder='resnet101',            # backbone, see encoders.load_backbone
    encoder_weights='DEFAULT',      # trained weights, None for random ones, or a file
    encoder_stride=None,            # cut the backbone at this stride
    encoded_image_size=14,          # pool the grid to 14 x 14; None keeps the native one
    embed_dim=512,                  # length of a word vector
    attention_dim=512,              # length of the vectors that attention compares
    decoder_dim=512,                # length of the LSTM's states
    dropout=0.5,                    # on the hidden state, before the vocabulary layer
    embed_dropout=0.0,              # on the word vectors, in training
    feature_dropout=0.0,            # on the encoder's features: whole channels of a picture, in training
    word_vectors=None,              # trained ones: a text file of GloVe, word2vec or fastText, embed_dim numbers a word
    tune_word_vectors=True,         # train them on, or keep them as they are
    # training
    captions=None,                  # a file of distillation.py: learn a teacher's captions in place of most of people's
    device=None,                    # 'cuda', 'cpu', ...; None takes the GPU if there is one
    epochs=120,                     # at most
    batch_size=32,                  # captions
    workers=0,                      # processes that load data
    encoder_lr=1e-4,                # learning rates of Adam
    decoder_lr=4e-4,
    cosine=False,                   # let the rates fall to 0 over the epochs along a cosine (Loshchilov 2017)
    grad_clip=5.0,                  # each gradient entry is clipped to +- this
    weight_decay=0.0,               # of the decoder's weights (AdamW, Loshchilov 2019)
    label_smoothing=0.0,            # share of a target that all words have in common (Szegedy et al. 2016, sec. 7)
    teacher_forcing=1.0,            # probability of feeding the true word; (1.0, 0.7): falling over the epochs
    alpha_c=1.0,                    # weight of the doubly stochastic attention penalty; (1.0, 0.0): falling, too
    fine_tune_encoder=False,        # train the encoder's blocks 2 to 4 as well
    cache_features=True,            # a frozen encoder sees each picture once; False: in every batch
    hold_features=True,             # keep these features in memory, on the device or beside it, if they fit
    flip=False,                     # mirror half the pictures, but not for a caption that speaks of left or right
    by_picture=None,                # all captions of a picture in one batch; None: if the encoder runs in training
    bucket=False,                   # captions of like length in one batch
    bf16=None,                      # matrix products in half precision; None: where the device is made for it
    accumulate=1,                   # a step's gradient from so many parts of the batch, if memory is short
    compile=False,                  # torch.compile the encoder, where it runs and that works
    fast=True,                      # the same formulas with fewer operations, where your forward agrees (fast.py)
    seed=0,
    # files and output
    output_folder='runs',           # checkpoints and history go here
    checkpoint=None,                # checkpoint to go on from
    start_from=None,                # checkpoint whose weights a second training starts from: to fine-tune the encoder,
    self_critical=None,             # or on CIDEr-D (self_critical.py), with the baseline 'greedy' or 'mean'
    samples=5,                      # captions drawn per picture then
    samples_dropout=False,          # dropout where it learns from them: not quite the paper's gradient, less by heart
    print_freq=10,                  # batches between two updates of the progress bar's figures
)
DECAY_AFTER, DECAY, STOP_AFTER = 8, 0.8, 20  # epochs without a better greedy BLEU-4
CALLED_OTHERWISE = dict(lr='decoder_lr', learning_rate='decoder_lr', hidden_size='decoder_dim',
                        hidden_dim='decoder_dim', num_workers='workers', lambda_='alpha_c')
KEPT_IN_CHECKPOINT = ('start_epoch', 'epochs_since_improvement', 'best_bleu4', 'best_score')


def check_settings(cfg):
    """Fill in the defaults and refuse what cannot be.

    :param cfg: dict of settings, see ``DEFAULTS``
    :return: complete dict with ``device`` decided
    :raises ValueError: an unknown setting, or an impossible value; the message names it
    """
    for name in cfg:
        if name in KEPT_IN_CHECKPOINT:
            raise ValueError(f'setting {name!r} is kept in the checkpoint: take it out of cfg')
        if name not in DEFAULTS:
            close = CALLED_OTHERWISE.get(name) or ''.join(difflib.get_close_matches(name, DEFAULTS, n=1))
            hint = f'; did you mean {close!r}?' if close else f'; known are {", ".join(DEFAULTS)}'
            raise ValueError(f'unknown setting {name!r}{hint}')
    cfg = {**DEFAULTS, **cfg}

    def require(name, kind, good, wanted):
        value = cfg[name]
        right = isinstance(value, kind) and not (isinstance(value, bool) and 'True' not in wanted)
        if not (right and good(value)):
            raise ValueError(f'setting {name!r} is {value!r}; it must be {wanted}')

    for name in ('embed_dim', 'attention_dim', 'decoder_dim', 'epochs', 'batch_size', 'print_freq', 'accumulate',
                 'samples'):
        require(name, int, lambda v: v >= 1, 'a whole number of at least 1')
    if not cfg['attention'] and not cfg['decoder']:
        require('batch_size', int, lambda v: v >= 2, 'at least 2 (batch norm needs two captions)')
    require('workers', int, lambda v: v >= 0, 'a whole number of at least 0')
    require('seed', int, lambda v: 0 <= v < 2 ** 32, 'a whole number of at least 0, below 2 ** 32')
    for name in ('encoder_lr', 'decoder_lr'):
        require(name, (int, float), lambda v: 0 < v < math.inf, 'a number above 0')
    require('grad_clip', (int, float, type(None)), lambda v: v is None or 0 < v, 'a number above 0, or None')
    for name in ('dropout', 'embed_dropout', 'feature_dropout', 'label_smoothing'):
        require(name, (int, float), lambda v: 0 <= v < 1, 'a number from 0 to below 1')
    require('weight_decay', (int, float), lambda v: 0 <= v < math.inf, 'a number of at least 0')
    for name, most, wanted in (('alpha_c', math.inf, 'a number of at least 0'),
                               ('teacher_forcing', 1, 'a number from 0 to 1')):
        require(name, (int, float, tuple, list), lambda v, most=most: len(of_epochs(v)) == 2 and all(
            isinstance(p, (int, float)) and not isinstance(p, bool) and 0 <= p <= most and p < math.inf
            for p in of_epochs(v)), f'{wanted}, or two: in the first and in the last epoch')
        cfg[name] = tuple(cfg[name]) if isinstance(cfg[name], list) else cfg[name]
    require('decoder_options', dict, lambda v: all(isinstance(key, str) for key in v), 'a dict')
    for name in ('attention', 'fine_tune_encoder', 'cache_features', 'hold_features', 'cosine', 'fast', 'flip',
                 'bucket', 'compile', 'tune_word_vectors', 'samples_dropout'):
        require(name, bool, lambda v: True, 'True or False')
    for name in ('by_picture', 'bf16'):
        require(name, (bool, type(None)), lambda v: True, 'True, False or None')
    for name in ('encoder_stride', 'encoded_image_size'):
        require(name, (int, type(None)), lambda v: v is None or v >= 1, 'a whole number of at least 1, or None')
    require('self_critical', (str, type(None)), lambda v: v is None or v in BASELINES, "None, 'greedy' or 'mean'")
    if cfg['self_critical'] and cfg['captions']:
        raise ValueError(f"setting 'captions' is {cfg['captions']!r}, but with self_critical the decoder learns from "
                         'its own captions: leave one of the two out')
    if cfg['self_critical'] == 'mean':
        require('samples', int, lambda v: v >= 2, 'at least 2 (the baseline is the mean of the other captions)')
    for name in ('data_folder', 'output_folder'):
        require(name, (str, Path), lambda v: True, 'a folder')
        cfg[name] = str(cfg[name])
    require('data_name', str, lambda v: True, "the files' base name")
    require('encoder', (str, type(None)), lambda v: True, 'a name')
    require('decoder', (str, type(None)), lambda v: True, "None, or a class of your own like 'my_decoder.MyDecoder'")
    for name in ('encoder_weights', 'checkpoint', 'start_from', 'word_vectors', 'captions'):
        require(name, (str, Path, type(None)), lambda v: True, 'a file, or None')
        cfg[name] = cfg[name] and str(cfg[name])
    if cfg['start_from'] and Path(cfg['start_from']).resolve().parent == Path(cfg['output_folder']).resolve():
        raise ValueError(f"setting 'start_from' is {cfg['start_from']!r}, whose place in output_folder this training "
                         'would take: set another output_folder')
    cfg['device'] = str(cfg['device'] or ('cuda' if torch.cuda.is_available() else 'cpu'))
    try:
        torch.empty(1, device=cfg['device'])
    except Exception as error:  # torch and its devices report this in many ways
        raise ValueError(f"setting 'device' is {cfg['device']!r}, which this machine does not have: "
                         f'{str(error).splitlines()[0]}') from error
    return cfg


def of_epochs(setting):
    """A setting that may change from the first to the last epoch: both values."""
    return tuple(setting) if isinstance(setting, (tuple, list)) else (setting, setting)


def in_epoch(setting, epoch, epochs):
    """The value of such a setting in an epoch (from 1 on): it changes evenly."""
    first, last = of_epochs(setting)
    return first + (last - first) * (epoch - 1) / max(epochs - 1, 1)


def train(cfg, encoder=None):
    """Train a decoder (and, fine-tuning, the encoder) and leave checkpoints and history.

    Files in ``output_folder``: ``checkpoint_{data_name}_{NoAttention,Attention}.pth.tar`` after each epoch,
    ``BEST_checkpoint_{NoAttention,Attention}.pth.tar`` at the best greedy BLEU-4 so far (CIDEr, if self-critical), and
    ``history_{NoAttention,Attention}.json``. A training that was stopped goes on from ``checkpoint`` as if it
    never had been. Files of another training of the same decoder are moved into ``output_folder/earlier_1`` (2, ...)
    after the first epoch.

    :param cfg: settings, see ``DEFAULTS``
    :param encoder: a module of your own from (n, 3, H, W) to (n, channels, h, w); ``cfg['encoder']`` is ignored
    :return: history, a list with a dict per epoch
    :raises ValueError: settings or a checkpoint that cannot be
    :raises FloatingPointError: the loss is not a number any more
    :raises OSError: ``output_folder`` cannot be written
    """
    if not isinstance(cfg, dict):
        raise ValueError(f'cfg is {cfg!r}; it must be a dict of settings, see DEFAULTS in solver.py')
    distributed.take_own_gpu(cfg.get('device'))
    cfg = check_settings(cfg if encoder is None else {**cfg, 'encoder': None})
    cfg['device'] = distributed.connect(cfg['device'], use_bf16(cfg))
    seed_everything(cfg['seed'])
    word_map = load_word_map(cfg['data_folder'], cfg['data_name'])
    model = build_model(cfg, word_map, encoder)
    model.encoder.fine_tune(cfg['fine_tune_encoder'])
    check_decoder(model.decoder, cfg)
    progress = dict(epoch=0, best_score=-1.0, epochs_since_improvement=0)
    if cfg['start_from']:
        progress['began'] = start_from(model, cfg['start_from'])  # to hold this training's best epoch against
    elif cfg['fine_tune_encoder'] and not cfg['checkpoint']:
        distributed.say('The encoder is trained beside a decoder that knows nothing yet: better train with it frozen '
                        'first, and go on from the best checkpoint (start_from).')
    if cfg['word_vectors'] and not (cfg['start_from'] or cfg['checkpoint']):  # which have them
        found = word_vectors.load(model.decoder.embedding, cfg['word_vectors'], word_map)
        words = len(word_map.keys() - SPECIAL_TOKENS)
        distributed.say(f"{cfg['word_vectors']} has {found} of the {words} words; the other {words - found} start at "
                        'random.')
    if not cfg['tune_word_vectors']:
        model.decoder.embedding.requires_grad_(False)
    for module in (model.encoder, model.decoder):
        distributed.same_weights(module)
    fused = torch.device(cfg['device']).type in ('cpu', 'cuda')  # one kernel for all parameters
    decoder_weights = [p for p in model.decoder.parameters() if p.requires_grad]
    optimizers = {'decoder': torch.optim.AdamW(decoder_weights, lr=cfg['decoder_lr'], fused=fused,
                                               weight_decay=cfg['weight_decay'])}
    if cfg['fine_tune_encoder']:
        open_layers = [p for p in model.encoder.parameters() if p.requires_grad]
        optimizers['encoder'] = torch.optim.Adam(open_layers, lr=cfg['encoder_lr'], fused=fused)

    if cfg['checkpoint']:
        progress = resume(model, optimizers, cfg['checkpoint'])
    if cfg['compile']:
        compile_encoder(model.encoder)
    train_data, val_data = caption_datasets(model, ['TRAIN', 'VAL'], in_memory=cfg['hold_features'])
    if len(train_data) == 1 and has_batch_norm(model.decoder):
        raise ValueError(f'{train_data.images_path} has a single caption: that is too little, '
                         f'{type(model.decoder).__name__} has a batch norm, which needs two')
    if cfg['captions']:
        train_data.replace_captions(cfg['captions'], word_map)
    if not cfg['checkpoint']:
        progress['made_of'] = made_of(cfg)
    if cfg['fast']:
        use_fast_forward(model, train_data)
    model.decoder = distributed.share_batch_norm(model.decoder)
    if cfg['embed_dropout']:
        model.decoder.embedding.register_forward_hook(
            lambda module, _, vectors: nn.functional.dropout(vectors, cfg['embed_dropout'], module.training))
    if progress['epoch'] >= cfg['epochs']:
        distributed.say(f"{cfg['checkpoint']} has trained {progress['epoch']} epochs already: raise epochs to go on.")
    with only_one(checkpoint_paths(cfg)[1]):
        run_epochs(model, train_data, val_data, optimizers, progress)
    if 'began' in progress and model.history:
        after = greedy_scores(best_epoch(model.history))
        distributed.say(f"Before: {greedy_scores(progress['began'])}.\nAfter:  {after}.")
    return model.history


@contextmanager
def only_one(best):
    """Within the block no other training writes this checkpoint, nor another of this decoder in its folder.

    :raises ValueError: another one does
    """
    def refuse():
        raise ValueError(f'another training is running that writes {best}: wait for its end, or set another '
                         'output_folder')

    with ExitStack() as held:
        if distributed.rank() == 0:
            try:
                best.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(best.with_name(f'.{best.name}.lock'), refuse))
            except OSError as error:
                raise OSError(f'{best.parent} cannot be written ({error.strerror or error}): set another '
                              'output_folder') from error
        yield


def run_epochs(model, train_data, val_data, optimizers, progress):
    """Train and validate, epoch after epoch, and leave checkpoints and history.

    :param progress: dict of the epochs done, best score, epochs without a better one; it is kept up to date
    """
    cfg = model.settings
    latest, best = checkpoint_paths(cfg)
    # going on in the folder of the checkpoint, its files are this training's own
    tidy = bool(cfg['checkpoint']) and Path(cfg['checkpoint']).resolve().parent == best.resolve().parent
    by_score = None
    if cfg['self_critical']:
        by_score = SelfCritical(train_data.references, cfg['samples'], cfg['self_critical'], cfg['samples_dropout'])
    aim = 'CIDEr' if cfg['self_critical'] else 'BLEU-4'
    for epoch in range(progress['epoch'] + 1, cfg['epochs'] + 1):
        idle = progress['epochs_since_improvement']
        if idle >= STOP_AFTER:
            distributed.say(f'No better {aim} for {STOP_AFTER} epochs: stop.')
            break
        if idle > 0 and idle % DECAY_AFTER == 0 and not cfg['cosine']:
            for optimizer in optimizers.values():
                for group in optimizer.param_groups:
                    group['lr'] *= DECAY
            distributed.say(f"No better {aim} for {idle} epochs: learning rate {group['lr']:.2e}.")

        start = time.perf_counter()
        train_scores = train_epoch(model, train_data, optimizers, epoch, by_score)
        distributed.same_buffers(model.decoder)
        val_scores = validate(model, val_data)
        seconds = time.perf_counter() - start
        distributed.say(f" * LOSS - {val_scores['loss']:.3f}, TOP-5 ACCURACY - {val_scores['top5']:.3f}, "
                        f"BLEU-4 - {val_scores['bleu4']:.3f}")
        distributed.say(f"   free-running: GREEDY BLEU-4 - {val_scores['greedy_bleu4']:.3f}, CIDER - "
                        f"{val_scores['greedy_cider']:.3f}   ({seconds:.0f} s)")

        score = val_scores['greedy_cider' if cfg['self_critical'] else 'greedy_bleu4']
        model.history.append(dict(
            epoch=epoch, train_loss=train_scores['loss'], train_top5=train_scores['top5'],
            **{f'val_{name}': value for name, value in val_scores.items()},
            decoder_lr=optimizers['decoder'].param_groups[0]['lr'], seconds=seconds))
        improved = best_epoch(model.history) is model.history[-1]
        progress |= dict(epoch=epoch, best_score=max(score, progress['best_score']),
                         epochs_since_improvement=0 if improved else idle + 1)
        if distributed.rank() == 0:
            if not tidy:
                set_aside(cfg)
                tidy = True
            save_checkpoint([best, latest] if improved else [latest], model, optimizers, progress)
            with atomic_path(history_path(cfg)) as temporary:
                temporary.write_text(json.dumps(model.history, indent=1))
        distributed.wait_for_all()


def check_decoder(decoder, cfg):
    """:raises ValueError: settings for a part that this decoder does not have, or for a start that there is not"""
    kind = type(decoder)
    begun = cfg['start_from'] or cfg['checkpoint']
    if cfg['self_critical'] and not begun:
        raise ValueError(f"setting 'self_critical' is {cfg['self_critical']!r}, which goes on from a trained decoder: "
                         'give its best checkpoint as start_from')
    if not cfg['tune_word_vectors'] and not (cfg['word_vectors'] or begun):
        raise ValueError("setting 'tune_word_vectors' is False, but there are no trained word vectors: give their file "
                         'as word_vectors, or leave it at True')
    if cfg['batch_size'] < 2 and has_batch_norm(decoder):
        raise ValueError(f"setting 'batch_size' is 1; it must be at least 2: {kind.__name__} has a batch norm, which "
                         'needs two captions')
    samples_words = 'teacher_forcing' in inspect.signature(decoder.forward).parameters
    if of_epochs(cfg['teacher_forcing']) != (1, 1) and not samples_words:
        raise ValueError(f"setting 'teacher_forcing' is {cfg['teacher_forcing']!r}, but {kind.__name__} is always fed "
                         'the true words: leave it at 1.0, or take a decoder made from lab.more.decoder.Decoder')
    asks = [name for name in ('embed_dropout', 'word_vectors', 'tune_word_vectors') if cfg[name] != DEFAULTS[name]]
    if asks and not isinstance(getattr(decoder, 'embedding', None), nn.Embedding):
        raise ValueError(f'setting {asks[0]!r} is {cfg[asks[0]]!r}, but {kind.__name__} has no nn.Embedding under the '
                         "name 'embedding'")


def has_batch_norm(module):
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


def use_fast_forward(model, dataset):
    """Train by ``fast.fast_forward`` if the decoder's own ``forward`` gives the same on a few captions.

    Decoders of other files are trained as they are.
    """
    if model.settings['decoder']:
        return
    few = batches.Batches(dataset, [few_captions(dataset)])[0]
    with torch.no_grad():
        encoder_out = encode(model, few.images)
    device = encoder_out.device
    why = fast.difference(model.decoder, encoder_out[few.image_of.to(device)], few.captions.to(device),
                          few.caplens.unsqueeze(1).to(device))
    model.fast = all(distributed.gather([why is None]))
    if model.fast:
        distributed.say("Your forward agrees with the formulas: training runs the lab's faster form "
                        '(lab/train/fast.py). fast=False runs yours.')
    else:
        distributed.say(f'Training runs your forward of {type(model.decoder).__name__} as it is written: {why}.')


def few_captions(dataset):
    """Captions of eight pictures, from the shortest to the longest that there are, but neither in this order nor in its
    reverse: a decoder has to sort them, and to take the right picture with each.

    :return: (8,) long, their numbers in the data set; fewer where there are fewer pictures
    """
    lengths = dataset.caplens.view(-1, dataset.cpi)
    pictures = lengths[:, 0].argsort(stable=True)
    pictures = pictures[torch.linspace(0, len(pictures) - 1, min(8, len(pictures))).round().long()]
    numbers = pictures * dataset.cpi
    numbers[-1] = dataset.caplens.flatten().argmax()
    mixed = [place for place in (3, 0, 6, 1, 7, 4, 2, 5) if place < len(numbers)]
    return numbers[mixed].unique_consecutive()


def compile_encoder(encoder):
    """Compile the encoder at its first use, if this machine can (it needs a C++ compiler or Triton); say so if not.

    :param encoder: ``models.Encoder``
    """
    plain = encoder.native_grid
    compiled = torch.compile(plain)

    def native_grid(images):
        try:
            return compiled(images)
        except Exception as error:  # what can go wrong differs from system to system
            encoder.native_grid = plain
            distributed.say(f'torch.compile does not work here, training goes on without it ({type(error).__name__}).')
            return plain(images)

    encoder.native_grid = native_grid


def train_epoch(model, dataset, optimizers, epoch, by_score=None):
    """One pass over the training captions.

    :param by_score: ``self_critical.SelfCritical`` on the training set, if the decoder learns from its own captions
    :return: dict with the mean ``loss`` per word and the ``top5`` accuracy in percent
    :raises FloatingPointError: the loss is not a number any more
    """
    cfg = model.settings
    model.encoder.train()  # what is frozen stays in eval(), see models.Encoder.train
    model.decoder.train()
    # the order depends on seed and epoch alone, so a resumed training sees the same batches
    generator = torch.Generator().manual_seed(cfg['seed'] * 100_003 + epoch)
    if distributed.rank() > 0:  # dropout of its own; the main process goes on with its random states
        seed_everything(((cfg['seed'] * 100_003 + epoch) * 1009 + distributed.rank()) % 2 ** 32)
    by_picture = cfg['by_picture']
    if by_picture is None:
        by_picture = dataset.key == 'images' or bool(cfg['self_critical'])
    order = batches.shuffled(dataset, cfg['batch_size'], generator, by_picture, cfg['bucket'], distributed.count())
    flip = batches.mirrored(dataset, model.word_map, generator, bool(cfg['self_critical'])) if cfg['flip'] else None
    parts = batches.Batches(dataset, order, flip, distributed.rank(), distributed.count(), cfg['accumulate'],
                            by_picture)
    teacher_forcing = in_epoch(cfg['teacher_forcing'], epoch, cfg['epochs'])
    alpha_c = in_epoch(cfg['alpha_c'], epoch, cfg['epochs'])
    losses, top5, step = AverageMeter(), AverageMeter(), 0
    bar = distributed.progress_bar(batches.loader(parts, cfg), desc=f"epoch {epoch}/{cfg['epochs']}", unit='batch')
    for batch in bar:
        if by_score:
            loss, shown = reward_loss(model, batch, by_score, dataset.cpi)
            losses.update(shown * batch.of_captions / len(batch.numbers), len(batch.numbers))
        else:
            loss, correct, words = caption_loss(decode(model, batch, teacher_forcing), alpha_c, batch.of_words,
                                                batch.of_captions, cfg['label_smoothing'])
            losses.update(loss.detach() * batch.of_words / words, words)
            top5.update(correct, words)
        loss.backward()
        if not batch.ends_step:
            continue

        for name, optimizer in optimizers.items():
            if cfg['cosine']:
                done = (epoch - 1 + step / len(order)) / cfg['epochs']
                optimizer.param_groups[0]['lr'] = cfg[f'{name}_lr'] * (1 + math.cos(math.pi * done)) / 2
            parameters = optimizer.param_groups[0]['params']
            distributed.sum_gradients(parameters)
            if cfg['grad_clip']:
                nn.utils.clip_grad_value_(parameters, cfg['grad_clip'])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # asking for a value makes a GPU's queue run dry, so not after every step
        if step % cfg['print_freq'] == 0 or step == len(order) - 1:
            if not math.isfinite(losses.avg):
                raise FloatingPointError(f'the loss is {float(losses.val)} in epoch {epoch}, batch {step}: lower '
                                         'decoder_lr, or look for a division or logarithm in your models.py')
            bar.set_postfix(loss=f'{losses.avg:.3f}', **dict(top5=f'{top5.avg:.1f}%') if top5.count else {})
        step += 1
    return averages(loss=losses, top5=top5)


def averages(**meters):
    """The averages over all processes, as plain numbers; None for what nothing was averaged of."""
    found = distributed.gather([{name: (float(meter.sum), meter.count) for name, meter in meters.items()}])
    sums = {name: [sum(values) for values in zip(*(own[name] for own in found), strict=True)] for name in meters}
    return {name: total / count if count else None for name, (total, count) in sums.items()}


def reward_loss(model, batch, by_score, captions_per_image):
    """The self-critical loss on a batch's pictures: what to differentiate, and what to show, minus the mean CIDEr-D."""
    pictures, number = batch.numbers // captions_per_image, torch.empty(len(batch.images), dtype=torch.long)
    number[batch.image_of] = pictures
    # a picture's captions may be shared among processes or parts: it counts here as far as they are here
    weights = batch.image_of.bincount(minlength=len(batch.images)) / batch.of_captions
    with half_precision(model.settings):
        return by_score(model, encode(model, batch.images), number, weights)


def caption_loss(decoded, alpha_c, of_words=None, of_captions=None, label_smoothing=0.0):
    """Cross-entropy per word, plus the doubly stochastic penalty if the decoder attends.

    L = -log p(y | x) + alpha_c * sum over pixels of (1 - sum over words of alpha)^2
    (*Show, Attend and Tell*, eq. 14; the mean over pixels and captions is taken here).

    :param decoded: what the decoder's ``forward`` or ``fast.fast_forward`` returns
    :param alpha_c: weight of the penalty
    :param of_words, of_captions: where this is a part of a batch: words and captions of the whole of it. The losses of
        the parts add up to that of the whole
    :param label_smoothing: share of each target that is spread over all words
    :return: loss, top-5 accuracy in percent (0-dim tensors), number of words
    """
    scores, captions, decode_lengths, *alphas, _ = decoded
    # the words to predict start after <start>; packing leaves out everything past a caption's end
    targets = pack_padded_sequence(captions[:, 1:], decode_lengths, batch_first=True).data
    scores = packed(scores, decode_lengths).data
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # no half precision here
    loss = nn.functional.cross_entropy(scores, targets, reduction='sum', label_smoothing=label_smoothing)
    loss = loss / (of_words or len(targets))
    for alpha in alphas:
        loss = loss + alpha_c * doubly_stochastic_penalty(alpha) * len(captions) / (of_captions or len(captions))
    return loss, topk_accuracy(scores.detach(), targets, 5), len(targets)


def doubly_stochastic_penalty(alpha):
    """(1 - sum over words of alpha)^2, the mean over pixels and captions (*Show, Attend and Tell*, eq. 14).

    :param alpha: (batch_size, steps, num_pixels)
    :return: 0-dim
    """
    return ((1 - alpha.sum(dim=1)) ** 2).mean()


@torch.no_grad()
def validate(model, dataset):
    """Loss, top-5 accuracy and BLEU-4 on a validation split.

    ``bleu4`` is teacher-forced: each word is guessed after the *true* words before it, which no caption of a new
    picture can have. ``greedy_bleu4`` lets the decoder read its own words, each image once.

    :return: dict with ``loss``, ``cross_entropy`` (the loss without the penalty of attention, to hold decoders against
        one another), ``top5`` (percent), ``bleu4``, ``greedy_bleu4`` (0 to 1), ``greedy_cider`` (0 to 10)
    """
    cfg, word_map = model.settings, model.word_map
    special = {word_map[word] for word in SPECIAL_TOKENS}
    model.encoder.eval()
    model.decoder.eval()
    losses, cross_entropy, top5 = AverageMeter(), AverageMeter(), AverageMeter()
    guesses = []

    def own_batches(what, captions=None):  # the batches of this process
        order = batches.in_order(dataset, cfg['batch_size'], captions)[distributed.rank()::distributed.count()]
        return distributed.progress_bar(batches.loader(batches.Batches(dataset, order), cfg), desc=what, unit='batch',
                                        leave=False)

    for batch in own_batches('validate'):
        decoded = decode(model, batch)
        loss, correct, words = caption_loss(decoded, 0.0)
        cross_entropy.update(loss, words)
        top5.update(correct, words)
        scores, _, decode_lengths, *alphas, sort_ind = decoded
        alpha_c = of_epochs(cfg['alpha_c'])[1]  # the same in all epochs
        losses.update(loss + alpha_c * sum(map(doubly_stochastic_penalty, alphas)), words)
        numbers = batch.numbers[sort_ind.cpu()].tolist()  # the decoder has sorted the batch
        scores = packed(scores, decode_lengths)
        rows, _ = pad_packed_sequence(scores._replace(data=scores.data.argmax(dim=1)), batch_first=True)
        words = [model.words(w for w in row[:length] if w not in special)
                 for row, length in zip(rows.tolist(), decode_lengths, strict=True)]
        guesses += zip(numbers, words, strict=True)

    greedy = []
    for batch in own_batches('greedy captions', torch.tensor(dataset.first_captions)):
        found = greedy_search(model.decoder, encode(model, batch.images), word_map)
        greedy += zip(batch.numbers.tolist(), (model.words(caption.words) for caption in found), strict=True)
    # in the order of the captions, whichever process had them
    guesses, greedy = (sorted(distributed.gather(found)) for found in (guesses, greedy))
    bleu4, greedy_bleu4 = (bleu([dataset.references[number // dataset.cpi] for number, _ in found],
                                [words for _, words in found])['BLEU-4'] for found in (guesses, greedy))
    return dict(**averages(loss=losses, cross_entropy=cross_entropy, top5=top5), bleu4=bleu4, greedy_bleu4=greedy_bleu4,
                greedy_cider=CiderD(dataset.references).score([words for _, words in greedy]))


def decode(model, batch, teacher_forcing=1.0):
    """The decoder's ``forward`` on a batch; each picture goes through the encoder once.

    :param batch: ``batches.Batch``
    :param teacher_forcing: below 1 for scheduled sampling, which a ``lab.more.decoder.Decoder`` has
    :raises ValueError: it returns too few or too many things
    """
    device = torch.device(model.settings['device'])
    with half_precision(model.settings):
        encoder_out = encode(model, batch.images)
        captions, caplens = batch.captions.to(device, non_blocking=True), batch.caplens.unsqueeze(1)
        if model.fast:
            return fast.fast_forward(model.decoder, encoder_out, captions, caplens, batch.image_of)
        decoded = model.decoder(encoder_out[batch.image_of.to(device, non_blocking=True)], captions,
                                caplens.to(device, non_blocking=True),
                                **{} if teacher_forcing == 1 else dict(teacher_forcing=teacher_forcing))
    right = {'Attention': (5,), 'NoAttention': (4,)}.get(model.name, (4, 5))
    if not isinstance(decoded, tuple) or len(decoded) not in right:
        came = f'{len(decoded)} things' if isinstance(decoded, tuple) else f'a {type(decoded).__name__}'
        raise ValueError(f'forward of {type(model.decoder).__name__} returns {came}; it must return predictions, '
                         f'sorted captions, decode lengths, {"alphas, " if 5 in right else ""}sort indices')
    return decoded


def history_path(cfg):
    return Path(cfg['output_folder']) / f'history_{decoder_name(cfg)}.json'


def set_aside(cfg):
    """Move what another training of this decoder left in ``output_folder`` into a folder of its own.

    A training that goes on from a checkpoint elsewhere takes that one's best model along.
    """
    _, best = checkpoint_paths(cfg)
    name = decoder_name(cfg)
    scores = (best.with_name(f'{split}_{name}.json') for split in ('test', 'val'))
    # the only one with the data set's name in its own: another data set's is of another training, too
    latest = sorted(best.parent.glob(f'checkpoint_*_{name}.pth.tar'))
    files = [*latest, *(path for path in (best, history_path(cfg), *scores) if path.exists())]
    if files:
        folder = next(path for n in itertools.count(1) if not (path := best.with_name(f'earlier_{n}')).exists())
        folder.mkdir()
        for path in files:
            path.rename(folder / path.name)
        distributed.say(f'   {best.parent} held another training of {name}: it is in {folder} now.')
    of_checkpoint = Path(cfg['checkpoint']).with_name(best.name) if cfg['checkpoint'] else None
    if of_checkpoint and of_checkpoint.exists():
        with atomic_path(best) as temporary:
            shutil.copyfile(of_checkpoint, temporary)


def start_from(model, path):
    """Take the weights of a checkpoint, and nothing else, into a model that may go on to train its encoder.

    :return: the dict of its last epoch
    :raises ValueError: a checkpoint of another vocabulary, model or encoder
    """
    state = read_checkpoint(path)
    check_vocabulary(model, state, path)
    cfg = model.settings
    if cfg['word_vectors'] and not state['settings'].get('word_vectors'):
        raise ValueError(f"setting 'word_vectors' is {cfg['word_vectors']!r}, but {path}, from which this training "
                         'starts, was trained without: give the file to that training, or leave the setting out here')
    restore_model(model, state, path)
    options = [settings['decoder_options'] for settings in (state['settings'], cfg)]
    if options[0] != options[1]:
        distributed.say(f'{path} was trained with decoder_options={options[0]}; from here on they are {options[1]}.')
    distributed.say(f'Starting from the weights of {path}: {greedy_scores(state["history"][-1])}.')
    return state['history'][-1]


def greedy_scores(epoch):
    """An epoch's free-running scores on validation, in words."""
    return f"greedy BLEU-4 {epoch['val_greedy_bleu4']:.3f}, CIDEr {epoch['val_greedy_cider']:.3f} on validation"


def check_vocabulary(model, state, path):
    if state['word_map'] != model.word_map:
        raise ValueError(f"{path} was trained with another vocabulary than {model.settings['data_name']} has")


def resume(model, optimizers, path):
    """Load a checkpoint into model and optimizers, the random states and the history.

    The learning rates of the settings hold where they are not those of the checkpoint.

    :return: its progress: dict of ``epoch``, ``best_score``, ``epochs_since_improvement``, :func:`made_of`; of a second
        training also ``began``, the last epoch of the first
    :raises ValueError: a checkpoint of another vocabulary, model or encoder
    """
    state = read_checkpoint(path)
    cfg, before = model.settings, state['settings']
    if bool(cfg['self_critical']) != bool(before['self_critical']):
        raise ValueError(f"{path} was trained with self_critical={before['self_critical']!r}, and the settings say "
                         f"{cfg['self_critical']!r}: for a second training give it as start_from, not as checkpoint")
    if cfg['decoder_options'] != before['decoder_options']:
        raise ValueError(f"{path} was trained with decoder_options={before['decoder_options']!r}, and the settings say "
                         f"{cfg['decoder_options']!r}: set them as they were")
    if cfg['tune_word_vectors'] != before['tune_word_vectors']:
        raise ValueError(f"{path} was trained with tune_word_vectors={before['tune_word_vectors']!r}, and the settings "
                         f"say {cfg['tune_word_vectors']!r}: set it as it was, or begin a second training by "
                         'start_from')
    check_vocabulary(model, state, path)
    restore_model(model, state, path)
    for name, optimizer in optimizers.items():
        if name in state['optimizers']:
            optimizer.load_state_dict(state['optimizers'][name])
            if any(cfg[key] != before[key] for key in (f'{name}_lr', 'cosine')):
                for group in optimizer.param_groups:
                    group['lr'] = cfg[f'{name}_lr']
    model.history = state['history']
    restore_random_states(state['random_states'])
    progress = state['progress']
    distributed.say(f"Going on after epoch {progress['epoch']} of {path}, best greedy "
                    f"{'CIDEr' if before['self_critical'] else 'BLEU-4'} {progress['best_score']:.3f}.")
    if cfg['cosine'] and before['cosine'] and cfg['epochs'] != before['epochs']:
        distributed.say(f"The cosine was drawn over {before['epochs']} epochs and is over {cfg['epochs']} now: the "
                        'learning rate makes a jump. Better set the number of epochs at the start.')
    return progress


def made_of(cfg):
    """Fingerprints of what a training is made of beside its settings, to see whether that is still the same: data, the
    files that it starts from or reads, and the code.

    :param cfg: all settings
    :return: dict: what -> fingerprint
    """
    vectors = bool(cfg['word_vectors'] and not cfg['start_from'])
    read = ['start_from', 'captions', *['word_vectors'] * vectors, 'encoder_weights']
    return {
        **{f'{split} split': content_digest(cfg['data_folder'], cfg['data_name'], split) for split in ('TRAIN', 'VAL')},
        **{f'{key} file': file_digest(cfg[key]) for key in read if cfg[key] and Path(cfg[key]).is_file()},
        'code': code_digest(cfg['decoder'])}
