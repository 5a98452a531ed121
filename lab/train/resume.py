"""Going on with a training, or starting another from its weights, and what its output folder held before."""

import itertools
import shutil
from pathlib import Path

import torch

from datasets import content_digest
from lab.train.checkpoints import FORMAT, checkpoint_paths, file_digest, read_checkpoint, restore_model
from lab.train.devices import log
from lab.train.model import decoder_name
from lab.train.source import code_digest, function_digest
from utils import atomic_path, best_epoch, monitored


def start_from(model, path):
    """Take the weights of a checkpoint, and nothing else, into a model that may go on to train its encoder.

    :raises ValueError: a checkpoint of another vocabulary, model or encoder
    """
    restore_model(model, read_checkpoint(path), path)
    log(f'Starting from the weights of {path}.')


def resume(model, optimizer, path):
    """Load a checkpoint into model and optimizer, the random states and the history.

    The learning rates of the settings hold where they are not those of the checkpoint.

    :return: the dict of the checkpoint
    :raises ValueError: a checkpoint of another vocabulary, model or encoder, or of an older version of this lab
    """
    state = read_checkpoint(path)
    cfg, before = model.settings, state['settings']
    if state['format'] != FORMAT:
        raise ValueError(f'{path} was written by an older version of this lab: begin a second training from its '
                         'weights (start_from)')
    restore_model(model, state, path)
    for name in ('self_critical', 'monitor', 'fine_tune_encoder', 'decoder_options', 'encoded_image_size'):
        if cfg[name] != before[name]:
            raise ValueError(f'{path} was trained with {name}={before[name]!r}, and the settings say {cfg[name]!r}: '
                             'set it as it was, or begin a second training by start_from')
    if {*optimizer.param_groups[0]} != {*state['optimizer']['param_groups'][0]} - {'initial_lr'}:
        raise ValueError(f'{path} was trained with another optimizer: pass that one as optimizer=...')
    optimizer.load_state_dict(state['optimizer'])
    for group in optimizer.param_groups:
        key = f"{group.get('name')}_lr"  # groups of your own keep theirs
        if key in cfg and (cfg[key] != before[key] or cfg['cosine'] != before['cosine']):
            group.update(lr=cfg[key], initial_lr=cfg[key])
    model.history = state['history']
    states = state['random_states']
    torch.set_rng_state(states['torch'])
    if len(states['cuda']) == torch.cuda.device_count():  # on other GPUs dropout draws anew
        torch.cuda.set_rng_state_all(states['cuda'])
    log(f"Going on after epoch {len(model.history)} of {path}, best {cfg['monitor']} "
        f"{abs(monitored(best_epoch(model.history))):.3f}.")
    if len(model.history) >= cfg['epochs']:
        log(f'{path} has trained {len(model.history)} epochs already: raise epochs to go on.')
    return state


def fingerprints(cfg, **own):
    """Fingerprints of what a training depends on beside its settings: data, the files that it reads, and the code.

    :param own: functions: a loss and an optimizer of your own (None: the lab's), the metric of ``monitor``
    :return: dict: what -> fingerprint
    """
    read = 'start_from', 'word_vectors', 'encoder_weights'
    return {
        **{f'{split} split': content_digest(cfg['data_folder'], cfg['data_name'], split) for split in ('TRAIN', 'VAL')},
        **{f'{key} file': file_digest(cfg[key]) for key in read if cfg[key] and Path(cfg[key]).is_file()},
        **{what: function_digest(function) for what, function in own.items() if function},
        'code': code_digest(cfg)}


def move_aside(cfg):
    """Move what another training of this decoder left in ``output_folder`` into a folder of its own.

    Where a training goes on in the folder of its checkpoint, the files there are its own. One that goes on from a
    checkpoint elsewhere takes that one's best model along.
    """
    if cfg['checkpoint'] and Path(cfg['checkpoint']).resolve().parent == Path(cfg['output_folder']).resolve():
        return
    _, best = checkpoint_paths(cfg)
    name = decoder_name(cfg)
    # checkpoints, history and scores, in several languages test_Attention_zh.json
    if files := sorted(path for end in ('.*', '_??.json') for path in best.parent.glob(f'*_{name}{end}')):
        folder = next(path for n in itertools.count(1) if not (path := best.with_name(f'earlier_{n}')).exists())
        folder.mkdir()
        for path in files:
            path.rename(folder / path.name)
        log(f'   {best.parent} held another training of {name}: it is in {folder} now.')
    of_checkpoint = Path(cfg['checkpoint']).with_name(best.name) if cfg['checkpoint'] else None
    if of_checkpoint and of_checkpoint.exists():
        with atomic_path(best) as temporary:
            shutil.copyfile(of_checkpoint, temporary)
