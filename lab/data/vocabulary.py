"""Words and their indices."""

from collections import Counter
from pathlib import Path

from utils import read_json

RUN_AGAIN = 'delete it if it is there and run create_input_files, or correct data_folder and data_name'
PAD, UNK, START, END = SPECIAL_TOKENS = ('<pad>', '<unk>', '<start>', '<end>')


def is_special(word):
    """Whether a token is no word: '<pad>' and so on, and '<start:zh>', with which captions in Chinese begin."""
    return word in SPECIAL_TOKENS or word.startswith('<start:')


def build_word_map(captions, min_word_freq, languages=()):
    """Number the words of the training captions, most frequent first, ties in alphabetical order.

    A word is kept when it occurs at least ``min_word_freq`` times; the classic code, with its ``>``, kept
    only words seen more often than that.

    :param captions: lists of tokens
    :param min_word_freq: a word seen less often becomes ``<unk>``
    :param languages: of the captions, if there are several: each has a start token of its own, such as ``<start:zh>``
    :return: dict, word -> index; ``<pad>`` is 0, then the words, ``<unk>``, ``<start>``, ``<end>``
    """
    counts = Counter(token for caption in captions for token in caption)
    words = [word for word, n in counts.items() if n >= min_word_freq and not is_special(word)]
    words.sort(key=lambda word: (-counts[word], word))
    starts = [f'<start:{language}>' for language in languages] or [START]
    return {token: index for index, token in enumerate([PAD, *words, UNK, *starts, END])}


def languages_of(word_map):
    """The languages of a vocabulary; [None] of one that has a single language, which needs no name."""
    return [word[7:-1] for word in word_map if word.startswith('<start:')] or [None]


def in_language(word_map, language=None):
    """A vocabulary in which ``<start>`` begins a caption in this language; None: in the first one."""
    languages = languages_of(word_map)
    return {**word_map, START: word_map[f'<start:{language or languages[0]}>']} if languages != [None] else word_map


def encode_caption(caption, word_map, max_len):
    """:return: list of max_len + 2 indices, ``<start> words <end> <pad> ...``"""
    unknown = word_map[UNK]  # also for a word that is spelled like a special token
    words = [unknown if is_special(word) else word_map.get(word, unknown) for word in caption]
    return [word_map[START], *words, word_map[END]] + [word_map[PAD]] * (max_len - len(caption))


def load_word_map(data_folder, data_name):
    """:return: dict word -> index of the data set's vocabulary"""
    return read_json(Path(data_folder, f'WORDMAP_{data_name}.json'), RUN_AGAIN)
