"""Going on with a training, or starting another from its weights, and what its output folder held before."""

import itertools
import shutil
from pathlib import Path

from datasets import content_digest
from lab.train import distributed
from lab.train.checkpoints import (
    checkpoint_paths,
    decoder_name,
    file_digest,
    read_checkpoint,
    restore_model,
    restore_random_states,
)
from lab.train.source import code_digest
from utils import atomic_path, best_epoch


def start_from(model, path):
    """Take the weights of a checkpoint, and nothing else, into a model that may go on to train its encoder.

    :raises ValueError: a checkpoint of another vocabulary, model or encoder
    """
    state, cfg = read_checkpoint(path), model.settings
    check_vocabulary(model, state, path)
    if cfg['word_vectors'] and not state['settings'].get('word_vectors'):
        raise ValueError(f"setting 'word_vectors' is {cfg['word_vectors']!r}, but {path}, from which this training "
                         'starts, was trained without: give the file to that training, or leave the setting out here')
    restore_model(model, state, path)
    before = state['settings']['decoder_options']
    if before != cfg['decoder_options']:
        distributed.log(f"{path} was trained with decoder_options={before}; from here on they are "
                        f"{cfg['decoder_options']}.")
    last = state['history'][-1]
    distributed.log(f"Starting from the weights of {path}: greedy BLEU-4 {last['val_greedy_bleu4']:.3f}, CIDEr "
                    f"{last['val_greedy_cider']:.3f} on validation.")


def check_vocabulary(model, state, path):
    """:raises ValueError: the checkpoint has another one"""
    if state['word_map'] != model.word_map:
        raise ValueError(f"{path} was trained with another vocabulary than {model.settings['data_name']} has")


def resume(model, optimizers, path):
    """Load a checkpoint into model and optimizers, the random states and the history.

    The learning rates of the settings hold where they are not those of the checkpoint.

    :return: the dict of the checkpoint
    :raises ValueError: a checkpoint of another vocabulary, model or encoder
    """
    state = read_checkpoint(path)
    cfg, before = model.settings, state['settings']
    for name in ('self_critical', 'decoder_options', 'tune_word_vectors', 'encoded_image_size'):
        if cfg[name] != before[name]:
            raise ValueError(f'{path} was trained with {name}={before[name]!r}, and the settings say {cfg[name]!r}: '
                             'set it as it was, or begin a second training by start_from')
    check_vocabulary(model, state, path)
    restore_model(model, state, path)
    for name, optimizer in optimizers.items():
        if name in state['optimizers']:
            optimizer.load_state_dict(state['optimizers'][name])
            if any(cfg[key] != before[key] for key in (f'{name}_lr', 'cosine')):
                optimizer.param_groups[0]['lr'] = cfg[f'{name}_lr']
    model.history = state['history']
    restore_random_states(state['random_states'])
    aim = 'val_greedy_cider' if cfg['self_critical'] else 'val_greedy_bleu4'
    distributed.log(f"Going on after epoch {len(model.history)} of {path}, best greedy "
                    f"{'CIDEr' if cfg['self_critical'] else 'BLEU-4'} {best_epoch(model.history)[aim]:.3f}.")
    if cfg['cosine'] and before['cosine'] and cfg['epochs'] != before['epochs']:
        distributed.log(f"The cosine was drawn over {before['epochs']} epochs and is over {cfg['epochs']} now: the "
                        'learning rate makes a jump. Better set the number of epochs at the start.')
    return state


def fingerprints(cfg):
    """Fingerprints of what a training depends on beside its settings: data, the files that it reads, and the code.

    :param cfg: all settings
    :return: dict: what -> fingerprint
    """
    vectors = bool(cfg['word_vectors'] and not cfg['start_from'])
    read = ['start_from', 'captions', *['word_vectors'] * vectors, 'encoder_weights']
    return {
        **{f'{split} split': content_digest(cfg['data_folder'], cfg['data_name'], split) for split in ('TRAIN', 'VAL')},
        **{f'{key} file': file_digest(cfg[key]) for key in read if cfg[key] and Path(cfg[key]).is_file()},
        'code': code_digest(cfg['decoder'])}


def continues(cfg):
    """Whether a training goes on in the folder of its checkpoint, so that the files there are its own."""
    return bool(cfg['checkpoint']) and Path(cfg['checkpoint']).resolve().parent == Path(cfg['output_folder']).resolve()


def move_aside(cfg, history):
    """Move what another training of this decoder left in ``output_folder`` into a folder of its own.

    A training that goes on from a checkpoint elsewhere takes that one's best model along.

    :param history: path of the history in ``output_folder``
    """
    _, best = checkpoint_paths(cfg)
    name = decoder_name(cfg)
    scores = (best.with_name(f'{split}_{name}.json') for split in ('test', 'val'))
    # the only one with the data set's name in its own: another data set's is of another training, too
    latest = sorted(best.parent.glob(f'checkpoint_*_{name}.pth.tar'))
    files = [*latest, *(path for path in (best, history, *scores) if path.exists())]
    if files:
        folder = next(path for n in itertools.count(1) if not (path := best.with_name(f'earlier_{n}')).exists())
        folder.mkdir()
        for path in files:
            path.rename(folder / path.name)
        distributed.log(f'   {best.parent} held another training of {name}: it is in {folder} now.')
    of_checkpoint = Path(cfg['checkpoint']).with_name(best.name) if cfg['checkpoint'] else None
    if of_checkpoint and of_checkpoint.exists():
        with atomic_path(best) as temporary:
            shutil.copyfile(of_checkpoint, temporary)
