"""The paragraphs of Python code: what ``paragraphs.py`` says of them, and how another text is put in their place."""

import ast
import io
import re
import tokenize
import unicodedata
from functools import partial
from itertools import accumulate

from instructor.cut import TITLE

WIDTH = 120
FULL = 95  # columns: a line of a comment that ends before this one ends its paragraph
DEEP = 8  # columns: a line of a comment that is indented so much more is a column at the right
GAP = re.compile(r' {2,}')  # between columns: "self.init    nn.Linear"; two spaces in a paragraph
ITEM = re.compile(r'(?:[-*]|\d+\.|(:\w[^:]*:)) ')  # of a list, or a field of a docstring
NO_WORDS = re.compile(r'`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\{\{.*?\}\}|https?://\S+')
PIECE = re.compile(r"""([fF]?)('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""")  # of a string
A_PLACE = r'\{\{|\}\}|\{(?:[^{}]|\{[^{}]*\})+\}'  # in an f-string
PLACE = re.compile(f'({A_PLACE})')
WIDE = '\u3000-\u9fff\uff00-\uffef'
# a line may break around a Chinese character, but not before its comma nor behind its bracket
ATOM = re.compile(rf'{A_PLACE}|[（《“]*(?:[^\s{{“”{WIDE}]+|[^（《“\s])[，。；：、）》”！？]*|\s+')


def has_words(text):
    return re.search('[A-Za-z]{2}', NO_WORDS.sub(' ', text)) is not None


def indent_of(line):
    return len(line) - len(line.lstrip())


def columns(text):
    """Its width: a Chinese character takes two columns."""
    return sum(1 + (unicodedata.east_asian_width(character) in 'WF') for character in text)


def wrapped(text, room, hang=0):
    """Its lines of at most ``room`` columns, the later ones indented by ``hang``; together they are the text."""
    lines = ['']
    for atom in ATOM.findall(text):
        if columns(lines[-1] + atom.rstrip()) > room and lines[-1].strip():
            lines.append(' ' * hang)
        lines[-1] += atom
    return lines


def python(text, say, comments=True):
    """
    :param comments: whether comments and docstrings are paragraphs too
    """
    source = re.sub('^[%!]', '#', text, flags=re.M)  # a notebook's magic
    lines = source.split('\n')
    begins = [0, *accumulate(len(line) + 1 for line in lines)]
    tree, tokens = ast.parse(source), list(tokenize.generate_tokens(io.StringIO(source).readline))

    def span(node):
        return [begins[line - 1] + len(lines[line - 1].encode()[:column].decode()) for line, column in (
            (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))]

    def whole(node):  # a raw string is a pattern
        piece = text[slice(*span(node))]
        return '' if piece[0] == 'r' else template(piece, isinstance(node, ast.JoinedStr))

    edits = [(*span(node), partial(string, node, whole(node), is_nested(node, tokens)))
             for node in strings(tree, whole, of_checks=not comments)]
    if comments:
        edits += [(*span(node), partial(docstring, text[slice(*span(node))])) for node in docstrings(tree)]
        edits += [(begins[block[0].start[0] - 1] + block[0].start[1], begins[block[-1].end[0] - 1] + block[-1].end[1],
                   partial(comment, block)) for block in comment_blocks(tokens)]
    edits.sort(key=lambda edit: edit[:2])

    out, done = '', 0
    for number, (begin, end, write) in enumerate(edits, 1):
        out += text[done:begin]
        following = edits[number][0] if number < len(edits) else len(text)
        new = write(say, out.rpartition('\n')[2], text[end:following].partition('\n')[0])
        new = text[begin:end] if new is None else new
        out, done = (out.rstrip(' ') if new[0] == '\n' else out) + new, end
    return out + text[done:]


# Functions that write a piece of code anew: ``say``, what stands before it on its line, what behind -> text, or None


def comment(block, say, before, behind):
    """
    :param block: its tokens, one on each line
    """
    if before.strip():  # behind code
        said = say(block[0].string[2:])
        return None if said is None else f'# {said}'
    old = [token.string[1:] for token in block]
    new = reflowed(old, WIDTH - len(before) - 1, say)
    return None if new == old else f'\n{before}'.join(f'#{line}' for line in new)


def docstring(source, say, before, behind):
    """
    :param source: the string with its quotes
    """
    old = source[3:-3].replace(f'\n{before}', '\n').split('\n')
    new = reflowed(old, WIDTH - len(before) - 6, say)
    return None if new == old else '"""' + re.sub('^ +\n', '\n', f'\n{before}'.join(new), flags=re.M) + '"""'


def string(node, whole, nested, say, before, behind):
    """
    :param whole: what it says, see :func:`template`
    :param nested: whether it stands between brackets, where a line may end
    """
    said = say(whole)
    if said in (None, whole):
        return None
    write = partial(literal, places=isinstance(node, ast.JoinedStr))
    if columns(before + write(said) + behind) <= WIDTH:
        return write(said)
    begin, end = ('', '') if nested else ('(', ')')
    hang = columns(before + begin)
    if hang > WIDTH / 2:
        hang = indent_of(before) + 4
        begin += '\n' + ' ' * hang
    pieces = wrapped(said, WIDTH - hang - 5 - columns(behind))
    return begin + f'\n{" " * hang}'.join(map(write, pieces)) + end


# What there is to write anew


def docstrings(tree):
    return [node.body[0].value for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node)]


def strings(node, whole, of_checks):
    """Strings in a tree that read like sentences, but for keys, patterns, and what something is compared with.

    :param whole: function node -> what it says
    :param of_checks: ``answer.same('h in training')`` names an array; a word that an ``if`` chooses is one to read, as
        one in the header of ``markdown(header, rows)`` is
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
        case ast.IfExp() if of_checks:
            words = [node.body, node.orelse]
        case ast.Call(func=ast.Name('markdown')) if of_checks:
            words = ast.walk(node.args[0])
    words = [part for part in words
             if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isalpha()]
    return words + [found for part in parts for found in strings(part, whole, of_checks)]


def is_sentence(text, places):
    """
    :param places: whether it is an f-string
    """
    words = re.findall(r'\b[A-Za-z]{2,}\b', re.sub(r'\{[^{}]*\}|<[^<>]*>', ' ', text))  # tags of HTML are none
    return ' ' in text.strip() and len(words) > 0 or places and text.endswith('.')


def is_nested(node, tokens):
    """Whether it stands between brackets, where a line may end."""
    before = [token.string for token in tokens if token.type == tokenize.OP
              and token.end <= (node.lineno, node.col_offset)]
    return sum(map(before.count, '([{')) > sum(map(before.count, ')]}'))


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


def reflowed(lines, room, say):
    """The lines of a docstring or of a block of comments, with what ``say`` makes of their paragraphs.

    :param room: columns of a line
    """
    out, block = [], []
    for line in [*lines, '']:
        if block and not goes_on(block, line, room):
            out += written(block, room, say)
            block = []
        if line.strip():
            block.append(line)
        else:
            out.append(line)
    return out[:-1]


def goes_on(block, line, room):
    """Whether a line belongs to the paragraph above it."""
    first, last = block[0], block[-1]
    more = indent_of(line) - indent_of(first)
    if not line.strip() or ITEM.match(line.lstrip()):
        return False
    if GAP.search(last.strip()):  # a row of a table: its last column may go on
        return len(block) == 1 and indent_of(line) == [gap.end() for gap in GAP.finditer(last)][-1]
    if ITEM.match(first.lstrip()):
        return more > 0
    if more > DEEP:
        return True
    full = columns(last) + WIDTH - room >= FULL
    as_before = more == indent_of(block[1]) - indent_of(first) if len(block) > 1 else more >= 0
    return full and as_before and (len(block) > 1 or more == 0 or last[-1] not in '.?!:')


def written(block, room, say):
    """A paragraph anew, its columns where they were."""
    first, last = block[0], block[-1]
    # the last line may hold nothing but a column at the right
    alone = len(block) > 1 and not GAP.search(first.strip()) and indent_of(last) - indent_of(first) > DEEP
    text = GAP.sub('  ', ' '.join(f' {line.strip()}' if alone and line is last else line.strip() for line in block))
    said = say(text) if has_words(text) else None
    if said is None:
        return block
    places = [gap.end() for line in block for gap in GAP.finditer(line) if gap.start() or alone and line is last]
    item, start = ITEM.match(text), indent_of(first)
    hang = indent_of(block[1]) - start if len(block) > 1 + alone else 0
    if item:
        hang = 4 if item[1] else item.end()
    cell, *cells = said.split('  ')
    lines = wrapped(' ' * start + cell, room, start + hang)
    for cell, place in zip(cells, places, strict=True):
        here = columns(lines[-1])
        if here + 2 > place:
            if here + 2 + columns(cell) <= room:
                place = here + 2
            else:
                lines.append('')
                here = 0
        begin, *rest = wrapped(' ' * place + cell, room, place)
        lines[-1] += begin[here:]
        lines += rest
    return [line.rstrip() for line in lines]
