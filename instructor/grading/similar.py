"""Near-identical ``models.py`` files, for a person to look at.

Names, numbers, comments, strings and layout are ignored and the given code is left out, so what is compared is how the
TODOs are written. The TODOs leave little freedom: two honest solutions may well look alike. It is a list of pairs to
read, not a verdict.
"""

import io
import itertools
import keyword
import tokenize
import zlib

from instructor.assemble import ROOT

WINDOW = 16      # tokens that must follow one another
ALIKE = 0.9      # share of the smaller file's windows
FEWEST = 60      # windows; fewer are too little to compare


def tokens(source):
    """Names and numbers are all alike: neither renaming nor a list of numbers changes anything."""
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                              tokenize.STRING, tokenize.ENDMARKER):
                continue
            is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
            found.append('name' if is_name else '0' if token.type == tokenize.NUMBER else token.string)
    except (tokenize.TokenError, SyntaxError):
        pass  # what could be read so far
    return found


def windows(source):
    """What is compared: the checksum of each so many tokens."""
    found = tokens(source)
    return sorted({zlib.crc32(' '.join(found[i:i + WINDOW]).encode()) for i in range(len(found) - WINDOW + 1)})


def pairs(found):
    """
    :param found: name -> ``windows`` of a ``models.py``
    :return: list of (share, name, name), most alike first
    """
    given = set(windows((ROOT / 'models.py').read_text(encoding='utf-8')))
    found = {name: own for name, all_windows in found.items() if len(own := set(all_windows) - given) >= FEWEST}
    alike = []
    for (one, first), (other, second) in itertools.combinations(found.items(), 2):
        share = len(first & second) / min(len(first), len(second))
        if share >= ALIKE:
            alike.append((share, one, other))
    return sorted(alike, reverse=True)


def report(found):
    """A page in Markdown.

    :param found: as of :func:`pairs`
    """
    found = pairs(found)
    lines = ['# Solutions that are written nearly alike', '', __doc__.split('\n\n')[1].replace('\n', ' '), '']
    if not found:
        return '\n'.join([*lines, 'None.', ''])
    lines += ['| alike | submission | submission |', '|---:|:---|:---|']
    return '\n'.join([*lines, *(f'| {share:.0%} | {one} | {other} |' for share, one, other in found), ''])
