"""Words of a sentence that a JSON gives in one piece (``raw``): Chinese is written without spaces.

As in Karpathy's tokens, punctuation is left out and Latin letters are small.
"""

import re

NAMES = ('rjieba', 'characters')
CHINESE = '\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff'
# a Chinese character; or a Latin word or number: 3.5, t-shirt, don't
CHARACTER = re.compile(rf"[{CHINESE}]|[^\W{CHINESE}]+(?:[-.'’][^\W{CHINESE}]+)*")


def by_name(name):
    """
    :param name: 'rjieba' finds words, with the package of this name; 'characters': each Chinese character is one
    :return: function that splits a sentence into a list of tokens
    :raises ValueError: an unknown name
    :raises ImportError: the package is not installed
    """
    if name not in NAMES:
        raise ValueError(f'tokenizer is {name!r}; it must be one of {", ".join(NAMES)}')
    if name == 'characters':
        return lambda raw: CHARACTER.findall(raw.lower())
    try:
        from rjieba import cut
    except ImportError:
        raise ImportError('the tokenizer rjieba is not installed: pip install ".[chinese]", or take the tokenizer '
                          'characters') from None
    return lambda raw: [word for word in cut(raw.lower()) if re.search(r'\w', word)]
