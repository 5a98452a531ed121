"""The Chinese texts: which have fallen behind their English source, and how they take its place."""

import ast
import json
import re

import pytest
from test_handout import broken_links

from instructor import handout, translate
from instructor.assemble import ROOT
from instructor.paragraphs import rewrite
from instructor.translate import SOURCES, chinese, translated
from report import render as report

KEPT = re.compile(r'\]\(([^)#]*)|(\$[^$]+\$)|(`+[^`]+`+)')  # targets of links, formulas, code
CLOSED = '，。：；？！、）》”'


def text_of(source):
    return (ROOT / source).read_text(encoding='utf-8')


def test_no_chinese_has_fallen_behind():
    """Run python -m instructor.translate and fill in what is missing."""
    behind = [f'{source}: {paragraph[:60]}' for source in SOURCES for paragraph in translate.behind(source)]
    assert not behind, '\n'.join(behind)


@pytest.mark.parametrize('source', SOURCES)
def test_chinese_keeps_what_is_no_language(source):
    for english, said in chinese(source).items():
        if source.endswith(('.md', '.ipynb')):
            assert set(KEPT.findall(english)) <= set(KEPT.findall(said)), said
            # emphasis that begins or ends with punctuation needs a space outside, or its stars are shown
            for before, inside, after in re.findall(r'(^|.)\*+([^*\s][^*]*)\*+(.|$)', said):
                assert not (inside[-1] in CLOSED and after.isalnum()), said
                assert not (inside[0] in '“（《' and before.isalnum()), said


class WithoutTexts(ast.NodeTransformer):
    """Code whose strings say nothing; of an f-string its places are left, in any order."""

    def visit_Constant(self, node):
        return ast.Constant('') if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node):
        places = [ast.dump(part) for part in self.generic_visit(node).values if isinstance(part, ast.FormattedValue)]
        return ast.Constant(' '.join(sorted(places)))


def code_of(source, text):
    if source.endswith('.ipynb'):
        cells = [''.join(cell['source']) for cell in json.loads(text)['cells'] if cell['cell_type'] == 'code']
        text = '\n'.join(cells).replace('%matplotlib inline', '')
    return ast.dump(WithoutTexts().visit(ast.parse(text)))


@pytest.mark.parametrize('source', [source for source in SOURCES if source.endswith(('.py', '.ipynb'))])
def test_the_code_stays(source):
    text = text_of(source)
    assert translated(source, text) != text or not chinese(source)
    assert code_of(source, translated(source, text)) == code_of(source, text)


@pytest.mark.parametrize('source', SOURCES)
def test_a_file_in_which_nothing_is_translated_stays(source):
    text = text_of(source)
    again = rewrite(source, text, lambda paragraph: None)
    assert again == text or source.endswith('.ipynb') and json.loads(again) == json.loads(text)


def test_the_report_finds_its_placeholders():
    notebook, render = (translated(source, text_of(source)) for source in ('report/report.ipynb', 'report/render.py'))
    your_text, your_name = re.search("^YOUR_TEXT, YOUR_NAME = '(.+)', '(.+)'", render, re.M).groups()
    assert your_text != report.YOUR_TEXT and notebook.count(f'"{your_text}"') == 5
    assert your_name != report.YOUR_NAME and notebook.count(f'"{your_name}"') == 1


def test_every_notebook_that_is_handed_out_is_a_source():
    assert {name for name in handout.files() if name.endswith('.ipynb')} <= set(SOURCES)


MARKDOWN = """\
# A title

Two lines of one paragraph,
with `code` and $x_t$.

1. **First**: an item
   on two lines.

       some code

   | a row | of words |
   |:---|---:|
   | `x` | $y$ |
2. second

A paragraph:

    code, not a paragraph

$$
e = x
$$
Behind a formula:
```
fenced
```

> A quote
> on two lines.
>
> - an item with `<end>`
>   on two lines
> - second
"""
SAID_OF_MARKDOWN = """\
# <A title>

<Two lines of one paragraph, with `code` and $x_t$.>

1. <**First**: an item on two lines.>

       some code

   <| a row | of words |>
   |:---|---:|
   | `x` | $y$ |
2. <second>

<A paragraph:>

    code, not a paragraph

$$
e = x
$$
<Behind a formula:>
```
fenced
```

> <A quote on two lines.>
>
> - <an item with `<end>` on two lines>
> - <second>
"""


def test_paragraphs_of_markdown():
    assert rewrite('a.md', MARKDOWN, '<{}>'.format) == SAID_OF_MARKDOWN


PYTHON = '''\
class A:
    """What it is.

    :param size: of the
        whole
    """

    def f(self):
        # TODO 1: A.f
        #   1. A step that goes on
        #      in a second line.                                         (batch_size, size)
        #
        #   x    one of them     nn.Linear
        x = g('key', f'it is {x["a key"]!r}, not {y}', 'no_words')  # behind the code
        raise ValueError('a sentence that'
                         ' goes on')
'''
SAID_OF_PYTHON = '''\
class A:
    """它是什么。

    :param size: 整体的大小
    """

    def f(self):
        # TODO 1: A.f
        #   1. 一个步骤。                                                (batch_size, size)
        #
        #   x    其中之一        nn.Linear
        x = g('key', f'不是 {y}，而是 {x["a key"]!r}', 'no_words')  # 在代码后面
        raise ValueError('一句话')
'''
CHINESE = {
    'What it is.': '它是什么。', ':param size: of the\n    whole': ':param size: 整体的大小',
    'behind the code': '在代码后面',
    '  1. A step that goes on\n     in a second line.                                         (batch_size, size)':
        '  1. 一个步骤。                                                (batch_size, size)',
    '  x    one of them     nn.Linear': '  x    其中之一        nn.Linear',
    'it is {x["a key"]!r}, not {y}': '不是 {y}，而是 {x["a key"]!r}',
    'a sentence that goes on': '一句话'}


def test_paragraphs_of_code():
    asked = []
    rewrite('a.py', PYTHON, asked.append)
    assert sorted(asked) == sorted(CHINESE)
    assert rewrite('a.py', PYTHON, CHINESE.get) == SAID_OF_PYTHON


def test_the_files_follow_their_source(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(translate, 'ROOT', tmp_path)
    monkeypatch.setattr(translate, 'FOLDER', tmp_path / 'zh')
    monkeypatch.setattr(translate, 'SOURCES', ['README.md', 'b.md'])
    monkeypatch.setattr(translate, 'README', tmp_path / 'README.zh.md')
    (tmp_path / 'README.md').write_text('One thing is here.\n\nAnother paragraph of words.\n\nThe last one goes.')
    (tmp_path / 'b.md').write_text('One thing is here.')
    translate.main()
    path = tmp_path / 'zh/README.md.po'
    text = path.read_text(encoding='utf-8')
    for number in '一二三':
        text = text.replace('\nmsgstr ""\n', f'\nmsgstr "{number}"\n', 1)
    path.write_text(text, encoding='utf-8')
    assert chinese('README.md') == {
        'One thing is here.': '一', 'Another paragraph of words.': '二', 'The last one goes.': '三'}

    (tmp_path / 'README.md').write_text('One thing is here.\n\nAnother paragraph of new words.\n\nQuite new!')
    for _ in range(2):  # nothing is lost by a second time
        capsys.readouterr()
        translate.main()
        assert chinese('README.md') == chinese('b.md') == {'One thing is here.': '一'}  # the other file knows it by now
        assert capsys.readouterr().out.splitlines() == [
            'README.md: 2 of 3 paragraphs are missing', '    Another paragraph of new words.', '    Quite new!']
        text = path.read_text(encoding='utf-8')
        assert set('''#, fuzzy\n#| msgid "Another paragraph of words."'''.splitlines()) <= set(text.splitlines())
        assert '三' not in text
    assert translated('README.md', 'One thing is here.\n\nQuite new!') == '一\n\nQuite new!'
    assert translate.README.read_text(encoding='utf-8') == '一\n\nAnother paragraph of new words.\n\nQuite new!'


def test_the_readme_links_from_its_folder():
    pages = {name: (ROOT / name).read_bytes() for name in map(str, handout.wanted_files())}
    more = [translate.README, ROOT / 'report/example/report.html', *(ROOT / 'instructor').glob('*.py')]
    assert broken_links(pages | {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in more}) == []
    assert translate.README.read_text(encoding='utf-8') == translate.readme()
