"""The Chinese texts: which have fallen behind their English source, and how they take its place."""

import ast
import json
import re

import pytest
from test_handout import broken_links

from instructor import handout, translate
from instructor.assemble import ROOT
from instructor.expected import content_of
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
    assert {name for name in handout.files() if name.endswith('.ipynb')} <= set(SOURCES)


@pytest.mark.parametrize('source', [source for source in SOURCES if source.endswith(('.md', '.ipynb'))])
def test_chinese_keeps_what_is_no_language(source):
    for english, said in chinese(source).items():
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


@pytest.mark.parametrize('source', SOURCES)
def test_the_code_stays_and_so_does_what_is_not_translated(source):
    text = text_of(source)
    again = rewrite(source, text, lambda paragraph: None)
    assert again == text or source.endswith('.ipynb') and json.loads(again) == json.loads(text)
    assert translated(source, text) != text or not chinese(source)
    if source.endswith(('.py', '.ipynb')):
        assert code_of(source, translated(source, text)) == code_of(source, text)


def test_what_is_printed_is_a_text_even_if_it_is_one_word():
    found = []
    rewrite('notes/any.py', "print('greedy:', 'keep' if kept else 'drop', number['key'])\nname = 'word'", found.append)
    assert found == ['greedy:', 'keep', 'drop']


def test_the_report_finds_its_placeholders():
    notebook, render = (translated(source, text_of(source)) for source in ('report/report.ipynb', 'report/render.py'))
    your_text, your_name = re.search("^YOUR_TEXT, YOUR_NAME = '(.+)', '(.+)'", render, re.M).groups()
    assert your_text != report.YOUR_TEXT and notebook.count(f'"{your_text}"') == 5
    assert your_name != report.YOUR_NAME and notebook.count(f'"{your_name}"') == 1


def test_the_files_follow_their_source(tmp_path, monkeypatch, capsys):
    for name, value in dict(ROOT=tmp_path, FOLDER=tmp_path / 'zh', SOURCES=['README.md', 'b.md'],
                            README=tmp_path / 'README.zh.md').items():
        monkeypatch.setattr(translate, name, value)
    (tmp_path / 'README.md').write_text('One thing is here.\n\nAnother paragraph of words.\n\nThe last one goes.')
    (tmp_path / 'b.md').write_text('One thing is here.')
    translate.main()
    path = tmp_path / 'zh/README.md.po'
    text = path.read_text(encoding='utf-8')
    for number in '一二三':
        text = text.replace('\nmsgstr ""\n', f'\nmsgstr "{number}"\n', 1)
    path.write_text(text, encoding='utf-8')
    assert list(chinese('README.md').values()) == ['一', '二', '三']

    (tmp_path / 'README.md').write_text('One thing is here.\n\nAnother paragraph of new words.\n\nQuite new!')
    for _ in range(2):  # nothing is lost by a second time
        capsys.readouterr()
        translate.main()
        assert chinese('README.md') == chinese('b.md') == {'One thing is here.': '一'}  # the other file knows it by now
        printed = capsys.readouterr().out
        assert 'Another paragraph of new words.' in printed and 'Quite new!' in printed and 'One thing' not in printed
        lines = path.read_text(encoding='utf-8').splitlines()
        assert '#, fuzzy' in lines and '#| msgid "Another paragraph of words."' in lines and '三' not in str(lines)
    assert translated('README.md', 'One thing is here.\n\nQuite new!') == '一\n\nQuite new!'
    assert translate.README.read_text(encoding='utf-8') == '一\n\nAnother paragraph of new words.\n\nQuite new!'


def test_the_readme_links_from_its_folder():
    pages = {name: (ROOT / name).read_bytes() for name in map(str, handout.wanted_files())}
    more = [translate.README, ROOT / 'report/example/report.html', *(ROOT / 'instructor').glob('*.py')]
    assert broken_links(pages | {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in more}) == []
    assert translate.README.read_text(encoding='utf-8') == translate.readme()


def test_what_has_a_label_is_said_somewhere():
    labels = json.loads((translate.FOLDER / 'labels.json').read_text(encoding='utf-8'))
    places = 'lab/**/*.py', '*.ipynb', 'notes/*.ipynb', 'tests/*.py'
    code = ''.join(path.read_text(encoding='utf-8') for place in places for path in ROOT.glob(place))
    words = {word for label in (*labels['figures'], *labels['words']) for word in re.findall('[A-Za-z_-]{3,}', label)}
    assert not words - {'word'} - {*re.findall('[A-Za-z_-]{3,}', code)}
    arrays = {name for path in ('tests/expected.npz', 'tests/bonus/expected.npz')
              for found in content_of((ROOT / path).read_bytes())[0]['expected'].values() for name, *_ in found}
    assert not [call for call in labels['calls'] if call not in code and not any(call in name for name in arrays)]
