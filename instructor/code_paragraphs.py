"""The paragraphs of Python code: what ``paragraphs.py`` says of them, and how another text is put in their place."""

import ast
import io
import re
import tokenize
from functools import partial
from itertools import accumulate

from instructor.cut import TITLE

NO_WORDS = re.compile(r'`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\{\{.*?\}\}|https?://\S+|</?details>')
PIECE = re.compile(r"""([fF]?)('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""")  # of a string
PLACE = re.compile(r'(\{\{|\}\}|\{(?:[^{}]|\{[^{}]*\})+\})')  # in an f-string


def has_words(text):
    return re.search('[A-Za-z]{2}', NO_WORDS.sub(' ', text)) is not None


def python(text, say, comments=True, captions=False):
    """
    :param comments: whether comments and docstrings are paragraphs too; a docstring that ``--help`` prints always is
    :param captions: whether its strings are words of captions, which stay, but for those of progress bars
    """
    source = re.sub('^[%!]', '#', text, flags=re.M)  # a notebook's magic
    lines = source.split('\n')
    begins = [0, *accumulate(len(line) + 1 for line in lines)]

    def span(node):
        return [begins[line - 1] + len(lines[line - 1].encode()[:column].decode()) for line, column in (
            (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))]

    def whole(node):  # a raw string is a pattern
        piece = text[slice(*span(node))]
        return '' if piece[0] == 'r' else template(piece, isinstance(node, ast.JoinedStr))

    tree = ast.parse(source)
    bars = [node.value for node in ast.walk(tree) if of_a_bar(node)]
    edits = [(*span(node), partial(string, whole(node), places=isinstance(node, ast.JoinedStr)))
             for node in (bars if captions else strings(tree, whole, of_checks=not comments))]
    edits += [(*span(node), partial(docstring, text[slice(*span(node))], indent=node.col_offset))
              for node in docstrings(tree) if comments or node.lineno == 1 and '__doc__' in text]
    if comments:
        for block in comment_blocks(tokenize.generate_tokens(io.StringIO(source).readline)):
            (row, column), (last_row, last_column) = block[0].start, block[-1].end
            edits.append((begins[row - 1] + column, begins[last_row - 1] + last_column,
                          partial(comment, [token.string for token in block], indent=column)))
    out, done = '', 0
    for begin, end, write in sorted(edits, key=lambda edit: edit[:2]):
        out += text[done:begin] + (write(say) or text[begin:end])
        done = end
    return out + text[done:]


# How a piece of code is written anew


def by_paragraph(text, say):
    """A docstring or a comment. Blank lines stand between its paragraphs, which keep their line breaks."""
    body = text.rstrip()
    said = [has_words(paragraph) and say(paragraph) or paragraph for paragraph in body.split('\n\n')]
    return '\n\n'.join(said) + text[len(body):]


def comment(lines, say, indent):
    said = by_paragraph('\n'.join(line[2:] for line in lines), say)
    return f'\n{" " * indent}'.join(f'# {line}'.rstrip() for line in said.split('\n'))


def docstring(source, say, indent):
    """
    :param source: the string with its quotes
    """
    said = by_paragraph(source[3:-3].replace('\n' + ' ' * indent, '\n'), say)
    return '"""' + re.sub(r'\n(?=.)|\n$', '\n' + ' ' * indent, said) + '"""'


def string(text, say, places):
    """
    :param text: what it says, see :func:`template`
    :return: it with its quotes; None: it stays
    """
    said = say(text)
    return None if said in (None, text) else literal(said, places)


# What there is to write anew


def docstrings(tree):
    return [node.body[0].value for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)]


def of_a_bar(node):
    """Whether a node is what a progress bar calls itself, ``desc='decoding'``."""
    return isinstance(node, ast.keyword) and node.arg == 'desc' and isinstance(node.value, ast.Constant)


def strings(node, whole, of_checks):
    """Strings in a tree that read like sentences, but for keys, patterns, and what something is compared with. What
    ``print`` prints, or an ``if`` chooses for it, is read even if it is one word.

    :param whole: function node -> what it says
    :param of_checks: ``answer.same('h in training')`` names an array; a word that an ``if`` chooses is one to read,
        and so is a word above a column of a table
    """
    parts, words = ast.iter_child_nodes(node), []
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return [node] if is_sentence(whole(node), isinstance(node, ast.JoinedStr)) else []
        case ast.Compare() | ast.Expr(value=ast.Constant()) | ast.Call(func=ast.Attribute(value=ast.Name('re'))):
            return []
        case ast.Subscript():
            parts = [node.value]
        case ast.Call(func=ast.Attribute(attr='same')) if of_checks:
            parts = node.keywords
        case ast.Call(func=ast.Name('markdown_table' | 'score_table'), args=words):
            words = words + [part for header in words if isinstance(header, ast.List) for part in ast.walk(header)]
        case ast.IfExp() if of_checks:
            words = [node.body, node.orelse]
        case ast.Call(func=ast.Name(id='print')):
            printed = [part for argument in node.args for part in (
                [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument])]
            read = [part for part in printed
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and has_words(part.value)]
            return read + [found for part in printed if part not in read for found in strings(part, whole, of_checks)]
        case ast.keyword() if of_a_bar(node):
            return [node.value]
    words = [part for part in words
             if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isalpha()]
    return words + [found for part in parts for found in strings(part, whole, of_checks)]


def is_sentence(text, places):
    """
    :param places: whether it is an f-string
    """
    words = re.findall(r'\b[A-Za-z]{2,}\b', re.sub(r'\{[^{}]*\}|<[^<>]*>', ' ', text))  # tags of HTML are none
    return ' ' in text.strip() and len(words) > 0 or places and text.endswith('.')


def comment_blocks(tokens):
    """Comments that are one text: on lines of their own, one below the other. Titles of TODOs are none."""
    blocks, below = [], None  # below: where the next comment goes on with the text
    for token in tokens:
        if token.type == tokenize.COMMENT and re.match('# (?!noqa)|#$', token.string) and not TITLE.match(token.string):
            row, column = token.start
            alone = not token.line[:column].strip()
            if alone and token.start == below:
                blocks[-1].append(token)
            else:
                blocks.append([token])
            below = (row + 1, column) if alone else None
    return blocks


# How a text is written


def template(source, places):
    """A string without its quotes, in one piece.

    :param places: whether it is an f-string, or one of its pieces is
    """
    pieces = ((piece[1], piece[2][1:-1]) for piece in PIECE.finditer(source))
    return ''.join(text if of_f or not places else re.sub('([{}])', r'\1\1', text) for of_f, text in pieces)


def literal(text, places):
    """The other way round."""
    parts = PLACE.split(text) if places else [text]  # text, place, text, ...
    inside = ''.join(parts[1::2])
    quote = '"' if "'" in text and '"' not in inside else "'"
    parts[::2] = [re.sub(rf'(?<!\\){quote}', rf'\\{quote}', part) for part in parts[::2]]
    return 'f' * bool(inside) + quote + ''.join(parts) + quote
