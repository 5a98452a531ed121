"""Learn from a teacher's captions: sequence-level distillation (Kim & Rush 2016, arXiv 1606.07947).

People describe a picture in five ways, and a decoder spreads its probability over all of them and more. A teacher, such
as an ensemble, says what is common to them. Here it captions the training pictures, and a decoder learns these captions
by cross-entropy, in place of all but a few of people's. Of what the teacher says of a picture, by beam search and by
drawing, those are taken that are nearest to people's captions: the paper's sequence-level interpolation (sec. 3.3),
with CIDEr-D for nearness where the paper has BLEU. The teacher has trained on the same pictures, so nothing new is told
of them.

    python -m lab.experiments.distillation said.json runs/a/BEST_checkpoint_Attention.pth.tar \
        runs/b/BEST_checkpoint_Attention.pth.tar
    python -m lab.experiments.train ... captions=said.json output_folder=runs/c \
        start_from=runs/a/BEST_checkpoint_Attention.pth.tar
"""

import argparse
import json
import sys

import numpy as np
import torch

from lab.decode.beam_search import beam_search, sample_search
from lab.decode.cider import CiderD
from lab.more.ensembles import load_ensemble
from lab.train import distributed
from lab.train.checkpoints import file_digest
from lab.train.forward import encode, half_precision
from lab.train.inputs import caption_dataset
from lab.train.source import code_digest
from utils import atomic_path

END = ['<end>']  # counts as a word, so that captions that break off are not near
PICTURES_AT_ONCE = 100


def distill(path, teachers, people=2, beam_size=5, samples=10, temperature=0.5, seed=0, device=None):
    """Let a teacher caption the training pictures.

    :param path: JSON file to write, for the setting ``captions``: per picture as many captions as the data set has,
        people's first, then the teacher's, the nearest to people's last
    :param teachers: checkpoints that caption together, one or more
    :param people: people's captions that stay, per picture; more do where the teacher has too few different ones
    :param beam_size: of the caption found by beam search
    :param samples: captions drawn per picture on top
    :param temperature: at which they are drawn, see ``beam_search.sample_search``
    :return: mean CIDEr-D of the teacher's captions taken
    :raises ValueError: checkpoints that cannot caption together, or no room for a caption of theirs
    """
    model = load_ensemble(teachers, device)
    dataset = caption_dataset(model, 'TRAIN')
    if not 0 <= people < dataset.cpi:
        raise ValueError(f'people is {people}; it must be from 0 to {dataset.cpi - 1}, so that of the {dataset.cpi} '
                         "captions per picture one is the teacher's")
    longest = dataset.captions.shape[1] - 2
    scorer = CiderD([[caption + END for caption in captions] for captions in dataset.references])
    torch.manual_seed(seed)
    found, scores = [], []
    with torch.no_grad(), distributed.progress_bar(total=len(dataset.names), unit='image', desc='teacher') as bar:
        for numbers in torch.arange(len(dataset.names)).split(PICTURES_AT_ONCE):
            images = dataset.images(numbers)
            with half_precision(model.settings):
                encoder_out = encode(model, images, dataset.has_features)
                best = beam_search(model.decoder, encoder_out, model.word_map, beam_size, longest)
                drawn = sample_search(model.decoder, encoder_out, model.word_map, longest, temperature, samples=samples)
            for i, number in enumerate(numbers.tolist()):
                said = [best[i], *drawn[i * samples:(i + 1) * samples]]
                # each once, in the order they were found
                said = list({tuple(one.words): None for one in said if one.finished and one.words})
                said = [model.words(words) for words in said]
                nearness = scorer.scores(np.full(len(said), number), [words + END for words in said])
                taken = np.argsort(-nearness, kind='stable')[:dataset.cpi - people]
                scores += nearness[taken].tolist()
                own = own_captions(dataset, model, number)[:dataset.cpi - len(taken)]
                found.append(own + [said[j] for j in taken[::-1]])
            bar.update(len(numbers))
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(dict(made_of(teachers), names=dataset.names, captions=found)))
    return float(np.mean(scores)) if scores else 0.0


def made_of(teachers):
    """Fingerprints of teachers and of the code that lets them caption together, to see whether they are still the same.

    :param teachers: checkpoints, as for :func:`distill`
    """
    return dict(teachers=[file_digest(teacher) for teacher in teachers], code=code_digest())


def own_captions(dataset, model, number):
    """What people said of a picture, as training reads it: lists of words."""
    rows = slice(number * dataset.cpi, (number + 1) * dataset.cpi)
    return [model.words(caption[1:length - 1]) for caption, length in
            zip(dataset.captions[rows].tolist(), dataset.caplens[rows].flatten().tolist(), strict=True)]


def main():
    parser = argparse.ArgumentParser(description="A teacher's captions of the training pictures, to learn from.")
    parser.add_argument('captions', help="JSON file to write, for the setting 'captions'")
    parser.add_argument('teachers', nargs='+', help='checkpoints that caption together')
    parser.add_argument('--people', type=int, default=2, metavar='N',
                        help="people's captions that stay, per picture; default: %(default)s")
    parser.add_argument('--beam-size', type=int, default=5)
    parser.add_argument('--samples', type=int, default=10, help='captions drawn per picture; default: %(default)s')
    parser.add_argument('--temperature', type=float, default=0.5, help='default: %(default)s')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    args = vars(parser.parse_args())
    path = args.pop('captions')
    print(f'{path}: captions with a mean CIDEr-D of {distill(path, **args):.2f}')


if __name__ == '__main__':
    try:
        main()
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f'{error}')
