"""Learn from a teacher's captions: sequence-level distillation (Kim & Rush 2016, arXiv 1606.07947).

People describe a picture in five ways, and a decoder spreads its probability over all of them. A teacher, such as an
ensemble, has learned what these captions have in common. It captions the training pictures by beam search and by
sampling. Its captions that are most similar to people's replace most of these, and a decoder learns them by
cross-entropy. This is the paper's sequence-level interpolation (sec. 3.3), with CIDEr-D as similarity in place of BLEU.

>>> teachers = ['runs/a/BEST_checkpoint_Attention.pth.tar', 'runs/b/BEST_checkpoint_Attention.pth.tar']
>>> distill('captions.json', teachers)
>>> train(dict(..., captions='captions.json', start_from=teachers[0], output_folder='runs/c'))
"""

import torch

from lab.decode import rules
from lab.decode.beam_search import beam_search
from lab.decode.greedy_search import sample_search
from lab.more.ensembles import load_ensemble
from lab.more.self_critical import END, scorers_of
from lab.train.checkpoints import file_digest
from lab.train.devices import progress_bar
from lab.train.features import caption_dataset
from lab.train.source import code_digest
from utils import write_json

BATCH_SIZE = 100  # pictures


def distill(path, teachers, people=2, beam_size=5, samples=10, temperature=0.5, seed=0, device=None):
    """Let a teacher caption the training pictures.

    :param path: JSON file to write, for the setting ``captions``. A picture has as many captions there as in the data
        set: people's first, then the teacher's, the most similar last
    :param teachers: checkpoints that caption together, one or more
    :param people: how many of people's captions stay, in each language; more stay where the teacher has too few
        different ones
    :param beam_size: for the caption of the beam search
    :param samples: how many captions are sampled in addition
    :param temperature: of the sampling, see ``rules.temperature``
    :raises ValueError: the checkpoints cannot caption together
    """
    model = load_ensemble(teachers, device)
    dataset = caption_dataset(model, 'TRAIN')
    k = dataset.cpi // len(dataset.languages)
    max_len = dataset.captions.shape[1] - 2
    scorers = scorers_of(dataset)
    torch.manual_seed(seed)
    captions = []
    with torch.no_grad(), progress_bar(total=len(dataset.names), unit='image', desc='teacher') as bar:
        for numbers in torch.arange(len(dataset.names)).split(BATCH_SIZE):
            encoder_out = model.encode(dataset.images(numbers))
            of_pictures = [[] for _ in numbers]
            for word_map, cider in scorers:
                beams = beam_search(model.decoder, encoder_out, word_map, beam_size, max_len)
                sampled = sample_search(model.decoder, encoder_out, word_map, max_len, [rules.temperature(temperature)],
                                        samples=samples)
                for i, number in enumerate(numbers.tolist()):
                    candidates = [beams[i], *sampled[i * samples:(i + 1) * samples]]
                    different = dict.fromkeys(tuple(one.words) for one in candidates if one.finished and one.words)
                    candidates = [model.words(words) for words in different]
                    candidates.sort(key=lambda words: cider.score(number, words + END), reverse=True)
                    best = candidates[:k - people]
                    first = number * dataset.cpi + len(of_pictures[i])
                    rows = slice(first, first + k - len(best))
                    theirs = [model.words(caption[1:length - 1]) for caption, length in zip(
                        dataset.captions[rows].tolist(), dataset.caplens[rows].flatten().tolist(), strict=True)]
                    of_pictures[i] += theirs + best[::-1]
            captions += of_pictures
            bar.update(len(numbers))
    write_json(path, dict(provenance=provenance(teachers), names=dataset.names, captions=captions), indent=None)


def provenance(teachers):
    """Fingerprints of the teachers' checkpoints and of the code: where captions come from."""
    return dict(teachers=[file_digest(teacher) for teacher in teachers], code=code_digest(tests=True))
