"""The Chinese of the lab's texts: ``python -m instructor.translate`` after a change of an English one.

English is the source. ``instructor/zh`` holds a gettext file for each source, with its paragraphs (``paragraphs.py``)
and their Chinese. The command brings these files up to date: a new paragraph comes in empty, a changed one is marked
*fuzzy* and keeps its old Chinese, one that is gone goes. Then it lists what is missing. ``make handout LANGUAGE=zh``
takes the Chinese; a paragraph without it, or a fuzzy one, stays English. instructor/zh/glossary.md is for translators.
"""

import io
import re

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

from instructor.assemble import ROOT
from instructor.cut import BONUS, student_source
from instructor.paragraphs import rewrite
from utils import atomic_path

FOLDER = ROOT / 'instructor' / 'zh'
PATTERNS = ['README.md', 'instructor/ASSIGNMENT.md', 'instructor/BONUS.md', 'docs/shapes.md', 'docs/flickr8k.md',
            'docs/photos.md', 'docs/speed.md', 'docs/extensions.md', 'docs/design.md', 'models.py', 'solver.py',
            'datasets.py', 'create_input_files.py', 'utils.py', 'train_rnn.ipynb', 'train_attention.ipynb',
            'test.ipynb', 'caption.ipynb', 'compare.ipynb', 'notes/*.ipynb', 'notes/*.py', 'report/report.ipynb',
            'report/*.py', 'report/page.css', 'lab/[anw]*.py', 'lab/*/__init__.py', 'lab/data/[deistv]*.py',
            'lab/decode/[a-z]*.py', 'lab/more/[a-z]*.py', 'lab/train/[cfmrs]*.py', 'lab/figures/[cs]*.py',
            'lab/experiments/[cdt]*.py',
            'tests/c*.py', 'tests/test_todo*.py', 'tests/protocol.py', 'tests/rubric.toml',
            'tests/bonus/bonus_checks.py', 'tests/bonus/test_*.py', 'instructor/mistakes/todo*.toml']
SOURCES = [path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
README = ROOT / 'docs' / 'README.zh.md'
FIGURES = {f'docs/images/{path.name}': f'docs/images/zh/{path.name}' for path in ROOT.glob('docs/images/zh/*.png')}
HEADER = 'msgid ""\nmsgstr "Language: zh\\nContent-Type: text/plain; charset=utf-8\\n"\n\n'


def english(source):
    """The paragraphs of a source, in their order.

    :param source: path in the repository
    """
    found, text = {}, (ROOT / source).read_text(encoding='utf-8')
    rewrite(source, text, found.setdefault)
    if source in BONUS.values():  # what an open TODO raises
        rewrite(source, student_source(text, source), found.setdefault)
    return list(found)


def po_file(source):
    return FOLDER / f"{source.removeprefix('instructor/')}.po"


def catalog(source):
    """What its gettext file holds."""
    path = po_file(source)
    content = path.read_bytes() if path.exists() else b''
    return read_po(io.BytesIO(content), locale='zh', charset='utf-8', abort_invalid=True)


def chinese(source):
    """Paragraph -> its Chinese, if it has one that is up to date."""
    return {message.id: message.string for message in catalog(source)
            if message.id and message.string and not message.fuzzy}


def behind(source):
    """The paragraphs without one."""
    known = chinese(source)
    return [paragraph for paragraph in english(source) if paragraph not in known]


def updated(source, known):
    """Its gettext file, up to date.

    :param known: paragraph -> Chinese, of all sources: for those that are new here
    """
    own, now = catalog(source), Catalog()
    for paragraph in english(source):
        now.add(paragraph)
    own.update(now)
    for message in own:
        if message.id and (message.fuzzy or not message.string) and message.id in known:
            message.string, message.previous_id = known[message.id], []
            message.flags.discard('fuzzy')
        message.flags -= {'python-format', 'python-brace-format'}
        if message.previous_id or not message.fuzzy:
            message.user_comments = []  # babel takes the English of the last time for one
    file = io.BytesIO()
    write_po(file, own, width=10 ** 6, omit_header=True, ignore_obsolete=True, include_previous=True)
    return HEADER + file.getvalue().decode().replace('\n# | ', '\n#| ')


def translated(source, text):
    """A source in Chinese, as far as it goes.

    :param text: its content, or a part of it
    """
    return rewrite(source, text, chinese(source).get)


def readme():
    """README.md in Chinese, as it lies in docs."""
    text = translated('README.md', (ROOT / 'README.md').read_text(encoding='utf-8'))
    text = text.replace('[中文](docs/README.zh.md)', '[English](README.md)')
    for english, chinese in FIGURES.items():
        text = text.replace(english, chinese)
    return re.sub(r'\]\((?!\w+:|#)', '](../', text)


def main():
    known = {paragraph: said for source in SOURCES for paragraph, said in chinese(source).items()}
    for source in SOURCES:
        content = updated(source, known)
        with atomic_path(po_file(source)) as temporary:
            temporary.write_text(content, encoding='utf-8')
    with atomic_path(README) as temporary:
        temporary.write_text(readme(), encoding='utf-8')
    for source in SOURCES:
        missing = behind(source)
        if missing:
            print(f'{source}: {len(missing)} of {len(english(source))} paragraphs are missing')
        for paragraph in missing:
            print(f'    {paragraph.splitlines()[0][:80]}')


if __name__ == '__main__':
    main()
