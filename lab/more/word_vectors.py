"""Trained word vectors from text files, as GloVe, word2vec and fastText offer them: a word and its numbers per line."""

import os

import torch
from torch import nn

from lab.data.vocabulary import is_special
from lab.train.devices import log, progress_bar


def load(embedding, path, word_map):
    """Fill a word embedding from a file, line by line: memory for the words of the vocabulary only.

    Words that the file lacks keep the values that they had. A first line with two numbers (how many words, how long
    vectors), as word2vec and fastText write it, is passed over.

    :param embedding: ``nn.Embedding`` (vocab_size, embed_dim)
    :param path: text file in UTF-8
    :param word_map: word -> index
    :return: how many words were found, special tokens not counted
    :raises ValueError: vectors of another length, a line that is no word and its numbers, or no word of the vocabulary
    """
    loaded = set()
    # TODO 14: load
    #   For each word, its numbers and their place in lines(path, embedding.embedding_dim), one after the other, so that
    #   no more than a line is in memory: if the word is in the vocabulary and not loaded yet, then
    #   vector(word, numbers, place) becomes its row of the embedding (in torch.no_grad()), and it goes into loaded
    ### BEGIN SOLUTION
    with torch.no_grad():
        for word, numbers, place in lines(path, embedding.weight.shape[1]):
            if word in word_map and word not in loaded:
                embedding.weight[word_map[word]] = vector(word, numbers, place)
                loaded.add(word)
    ### END SOLUTION
    loaded = {word for word in loaded if not is_special(word)}
    if not loaded:
        raise ValueError(f'{path} has none of the words of the vocabulary: it must be text in UTF-8, with a word and '
                         f'its {embedding.weight.shape[1]} numbers (embed_dim) per line')
    return len(loaded)


def load_named(model):
    """Load the word vectors that the settings name into a new decoder."""
    cfg = model.settings
    embedding = getattr(model.decoder, 'embedding', None)
    if cfg['word_vectors'] and not (cfg['start_from'] or cfg['checkpoint']):  # which have them
        count = load(embedding, cfg['word_vectors'], model.word_map)
        words = sum(not is_special(word) for word in model.word_map)
        log(f"{cfg['word_vectors']} has {count} of the {words} words; the other {words - count} start at random.")


def add_dropout(model):
    """Drop entries of the word vectors in training, as the setting ``embed_dropout`` says."""
    p = model.settings['embed_dropout']
    if p:
        model.decoder.embedding.register_forward_hook(
            lambda module, _, vectors: nn.functional.dropout(vectors, p, module.training))


def lines(path, size):
    """Go through such a file, with a progress bar.

    :return: generator of a word, its numbers (list of ``size`` strings), and where that is, for messages
    :raises ValueError: a line with fewer numbers
    """
    with open(path, encoding='utf-8-sig', errors='replace', newline='\n') as file, progress_bar(
            total=os.path.getsize(path), unit='B', unit_scale=True, desc='read word vectors', delay=2) as bar:
        for number, line in enumerate(file, 1):
            bar.update(len(line))  # characters, which for most words are bytes
            # not at every blank of Unicode: some files have those as words
            word, *values = line.rstrip(' \r\n').split(' ')
            if line.isspace() or number == 1 and len(values) == 1:
                continue
            if len(values) < size:
                raise ValueError(f'{path}, line {number}: {len(values)} numbers follow the word, but embed_dim is '
                                 f'{size}: set embed_dim to the length of these vectors. A file with tabs, or '
                                 'one that is cut off, packed or binary cannot be read: save it as text in UTF-8')
            # words may hold blanks: the numbers are what comes last
            yield ' '.join([word, *values[:-size]]), values[-size:], f'{path}, line {number}'


def vector(word, numbers, place):
    """:return: (len(numbers),) tensor;  :raises ValueError: not all are numbers"""
    try:
        values = torch.tensor([float(number) for number in numbers])
    except ValueError:
        values = torch.tensor(torch.nan)
    if not values.isfinite().all():
        raise ValueError(f'{place}: what follows {word!r} is not {len(numbers)} numbers')
    return values
