"""The paragraphs of a text for people, and another text in the place of each: what ``translate.py`` is built on.

A paragraph is one of Markdown (a heading, a list item and a row of a table are paragraphs of their own, in a quote
too), one of a docstring or of a block of comments (blank lines stand between them), a comment behind code, or a string
in code that reads like a sentence. Line breaks count in docstrings and comments only. Code, formulas and the titles of
TODOs are no paragraphs.
"""

import json
import re
from pathlib import PurePath

from instructor.code_paragraphs import has_words, python

MARK = re.compile(r' *(?:> *)?(?:(?:#+|[-*]|\d+\.) +)?')  # before the first word of a paragraph of Markdown
CAPTIONS = re.compile(r'lab/data/shapes\.py')  # whose strings are words of captions
# Python files that the assignment calls worth reading: their comments and docstrings are paragraphs, too.
WITH_COMMENTS = re.compile(r'[^/]+\.py|notes/.+|lab/(decode|more)/.+|lab/train/settings\.py|lab/\w+/__init__\.py')
# What is a paragraph in files of other kinds: behind the first group, in the second one.
VALUE = {'.toml': r'^((?:title|answer|about) = )(".*")$', '.css': r'(content: )("\w+ ")'}


def indent_of(line):
    return len(line) - len(line.lstrip())


def rewrite(name, text, say):
    """
    :param name: of the file; in Python files that are not WITH_COMMENTS only the strings are paragraphs
    :param text: its content
    :param say: function paragraph -> what takes its place; None: it stays as it is
    :return: the new content
    """
    if name.endswith('.ipynb'):
        notebook = json.loads(text)
        for cell in notebook['cells']:
            of_cell = python if cell['cell_type'] == 'code' else markdown
            cell['source'] = of_cell(''.join(cell['source']), say).splitlines(keepends=True)
        return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'
    if name.endswith('.py'):
        return python(text, say, WITH_COMMENTS.fullmatch(name) is not None, CAPTIONS.fullmatch(name) is not None)
    return markdown(text, say) if name.endswith('.md') else values(text, VALUE[PurePath(name).suffix], say)


def values(text, pattern, say):
    def value(match):
        said = say(json.loads(match[2]))
        return match[0] if said is None else match[1] + json.dumps(said, ensure_ascii=False)
    return re.sub(pattern, value, text, flags=re.M)


def markdown(text, say):
    out, block = [], []

    def end():
        if block:
            mark = MARK.match(block[0])[0]
            whole = ' '.join([block[0][len(mark):].rstrip(), *(line.lstrip('> ').rstrip() for line in block[1:])])
            said = say(whole) if has_words(whole) else None
            out.extend(block if said is None else [mark + said])
            block.clear()

    until, code, blank, inside = '', False, True, 0  # inside: column at which the text of a list item begins
    for line in text.split('\n'):
        words = re.sub('^ *>', '', line).strip()
        opens = not until and re.match(r'```|\$\$', words)
        until = opens[0] if opens else until
        code = (blank or code) and bool(words) and indent_of(line) >= inside + 4
        if until or code or not words:
            end()
            out.append(line)
            if until and words[len(until) * bool(opens):].endswith(until):
                until = ''
        else:
            mark, alone = MARK.match(line)[0], words[0] in '#|'
            if mark.strip(' >') or alone:
                end()
            if mark.strip(' >') or blank:
                inside = 0 if words[0] == '#' else len(mark)
            block.append(line)
            if alone:
                end()
        blank = not words
    end()
    return '\n'.join(out)
