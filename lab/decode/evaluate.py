"""Captions by beam search: for a test set with its scores, or for one picture with its attention maps."""

import os
import re
import time
from pathlib import Path
from statistics import fmean

import torch

from datasets import CaptionDataset
from lab.data.images import load_image
from lab.decode.beam_search import beam_search
from lab.decode.metrics import scores_of
from lab.train.batches import loader
from lab.train.checkpoints import file_digest
from lab.train.devices import progress_bar
from lab.train.features import caption_dataset
from utils import best_epoch, evaluating, write_json


def caption_split(model, split='TEST', beam_size=3, search=beam_search, batch_size=32, max_len=50, dataset=None):
    """Caption each image of a split once.

    :param model: ``model.CaptionModel``, see ``checkpoints.load_model``
    :param split: 'TEST' or 'VAL'
    :param beam_size: captions kept per image during search; 1 is greedy decoding
    :param search: ``beam_search``, or a function of your own in its place, of the same parameters
    :param batch_size: images searched at once; ``max_len``: longest caption in words
    :param dataset: of ``features.caption_dataset``, if it is there already
    :return: per image a dict: name, caption (list of words), score (log-probability), finished, references,
        probabilities (of each word), alphas (len(caption), h, w) or None
    """
    dataset = dataset or caption_dataset(model, split)
    images = loader(dataset, torch.arange(0, len(dataset), dataset.cpi), batch_size)
    found = []
    for batch in progress_bar(images, unit='batch', desc=f'{model.name}, beam {beam_size}'):
        found += _search(model, batch.images, beam_size, search, max_len)[0]
    return [{'name': name, **caption, 'references': references}
            for name, caption, references in zip(dataset.names, found, dataset.references, strict=True)]


@torch.no_grad()
def _search(model, images, beam_size, search, max_len):
    """:return: a dict for each image: caption, score, finished, probabilities, alphas; the encoded images"""
    encoder_out = model.encode(images)
    grid = tuple(encoder_out.shape[1:3])
    captions = []
    for found in search(model.decoder, encoder_out, model.vocabulary, beam_size, max_len):
        alphas = found.alphas.unflatten(1, grid) if found.alphas is not None else None
        captions.append({'caption': model.words(found.words), 'score': found.score, 'finished': found.finished,
                         'probabilities': found.probabilities, 'alphas': alphas})
    return captions, encoder_out


def evaluate(model, split='TEST', beam_sizes=(1, 3, 5), history=None, search=beam_search, **options):
    """All scores of ``metrics.METRICS`` on a split, for several beam sizes.

    :param model: ``model.CaptionModel``
    :param beam_sizes: captions kept per image during search, a list of whole numbers of at least 1
    :param history: of the whole training, for best_epoch, epochs and train_seconds; the history in a best checkpoint
        ends at the best epoch
    :param search, options: as for :func:`caption_split`
    :return: dict: model, parameters (of the decoder), best_epoch, epochs, train_seconds,
        scores (per beam size: beam_size, BLEU-1 ... BLEU-4, CIDEr-D and your own of ``METRICS``, words (the captions'
        mean length), seconds of the search), reference_words (the mean length of people's captions),
        captions_per_beam (in the order of scores, words only),
        captions (of the middle beam size, see :func:`caption_split`), captions_beam_size
    """
    # this also encodes the split, so that the seconds below are those of the search
    dataset = caption_dataset(model, split)
    searches, scores = [], []
    for beam_size in beam_sizes:
        start = time.perf_counter()
        searches.append(caption_split(model, split, beam_size, search, dataset=dataset, **options))
        seconds = time.perf_counter() - start
        words = [c['caption'] for c in searches[-1]]
        scores.append({'beam_size': beam_size, 'seconds': seconds, **scores_of(dataset.references, words),
                       'words': fmean(map(len, words))})
    middle = len(beam_sizes) // 2
    history = model.history if history is None else history
    return {
        'model': model.name, 'parameters': sum(p.numel() for p in model.decoder.parameters()),
        'best_epoch': best_epoch(history).get('epoch'), 'epochs': len(history),
        'train_seconds': sum(epoch['seconds'] for epoch in history),
        'scores': scores, 'reference_words': fmean(len(tokens) for one in dataset.references for tokens in one),
        'captions_per_beam': [[c['caption'] for c in captions] for captions in searches],
        'captions_beam_size': beam_sizes[middle], 'captions': searches[middle]}


def save_result(result, path):
    """Write a result of :func:`evaluate` as JSON, without alphas and probabilities."""
    captions = [{key: value for key, value in c.items() if key not in ('alphas', 'probabilities')}
                for c in result['captions']]
    write_json(path, {**result, 'captions': captions})


def find_picture(model, picture):
    """One picture of the test split, or a file.

    :param picture: its number in the split, from 0; or the path of a file
    :return: its name for files of results, and uint8 pixels (3, 256, 256). The name is 'test0' for a number; for a file
        its own with six digits of its SHA-256, 'dog-3fa2b1': two files may be called dog.jpg
    :raises IndexError: the split has no such number
    :raises ValueError: the file is not a readable picture
    """
    if isinstance(picture, (str, os.PathLike)):
        path = Path(picture).expanduser()
        pixels = torch.from_numpy(load_image(path))
        stem = re.sub(r'\W', '_', path.stem)[:40]
        return f'{stem}-{file_digest(path)[:6]}', pixels
    dataset = CaptionDataset(model.settings['data_folder'], model.settings['data_name'], 'TEST')
    return f'test{picture}', dataset.image(picture)


def caption_image(model, image, beam_size=3, max_len=50, search=beam_search):
    """Caption one picture.

    :param image: a file, or uint8 pixels (3, H, W)
    :param search: as for :func:`caption_split`
    :return: dict: caption (list of words), score (log-probability), finished, probabilities (of each word),
        alphas (len(caption), h, w) or None, gate (see :func:`gate_per_word`), image (3, 256, 256) uint8, the
        encoder's input
    :raises ValueError: the file is not a readable picture
    """
    pixels = image if torch.is_tensor(image) else torch.from_numpy(load_image(image))
    (found,), encoder_out = _search(model, pixels.unsqueeze(0), beam_size, search, max_len)
    return {**found, 'gate': gate_per_word(model, encoder_out, found['caption']), 'image': pixels}


@torch.no_grad()
def gate_per_word(model, encoder_out, caption):
    """How far the gate of *Show, Attend and Tell*, sec. 4.2.1, is open at each word: beta, its mean over the channels.

    The decoder reads the caption once more while a hook listens to its gate.

    :param encoder_out: (1, h, w, encoder_dim)
    :param caption: list of words
    :return: list of beta, one per word; None for a decoder whose steps do not call such a layer
    """
    layer = getattr(model.decoder, 'f_beta', None)
    betas = []
    if layer is None:
        return None
    word_map = model.vocabulary
    with evaluating(model.decoder), layer.register_forward_hook(
            lambda layer, inputs, output: betas.append(output.sigmoid().mean().item())):
        state, memory = model.decoder.start(encoder_out)
        for word in ['<start>', *caption][:len(caption)]:
            latest = torch.tensor([word_map[word]], device=encoder_out.device)
            _, state, _ = model.decoder.step(latest, state, memory)
    return betas if len(betas) == len(caption) else None
