"""Trained word vectors from text files, as GloVe, word2vec and fastText offer them: a word and its numbers per line."""

import os

import torch

import processes


def load(embedding, path, word_map):
    """Fill a word embedding from a file, line by line: memory for the words of the vocabulary only.

    Words that the file lacks keep the values that they had. A first line with two numbers (how many words, how long
    vectors), as word2vec and fastText write it, is passed over.

    :param embedding: ``nn.Embedding`` (vocab_size, embed_dim)
    :param path: text file in UTF-8
    :param word_map: word -> index
    :return: how many words were found
    :raises ValueError: no such file, vectors of another length, or a line that is none
    """
    found, size = set(), embedding.weight.shape[1]
    try:
        file = open(path, encoding='utf-8', errors='replace', newline='\n')
    except OSError as error:
        raise ValueError(f'the word vectors {path} cannot be read: {error.strerror}') from None
    with file, torch.no_grad(), processes.progress_bar(
            total=os.path.getsize(path), unit='B', unit_scale=True, desc='read word vectors', delay=2) as bar:
        for number, line in enumerate(file, 1):
            bar.update(len(line))  # characters, which for most words are bytes
            # words may hold blanks: the numbers are what comes last
            word, *values = line.rstrip().rsplit(' ', size)
            if number == 1 and len(line.split()) == 2:
                continue
            if len(values) != size or (number <= 2 and len(line.split()) != size + 1):
                raise ValueError(f'{path}, line {number}: {len(line.split()) - 1} numbers follow the word, but '
                                 f'embed_dim is {size}: set embed_dim to the length of these vectors')
            if word in word_map and word not in found:
                try:
                    embedding.weight[word_map[word]] = torch.tensor([float(value) for value in values])
                except ValueError:
                    raise ValueError(f'{path}, line {number}: what follows {word!r} is not {size} numbers') from None
                found.add(word)
    return len(found)
