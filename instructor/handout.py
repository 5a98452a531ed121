"""What students get: ``python -m instructor.handout`` (``make handout``; ``LANGUAGE=zh`` for the Chinese one).

Lays out the assignment with its TODOs open in ``build/handout/captioning`` and packs the folder as a zip, the same
bytes every time. Then it proves on the result that the solution is not in it and that a student can begin.
"""

import argparse
import ast
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from tqdm import tqdm

from instructor import translate
from instructor.assemble import ROOT, wanted_files, without_outputs
from instructor.cut import BEGIN, BONUS, END, REFERENCE, student_source
from instructor.expected import as_file, content_of
from lab.data import box
from utils import atomic_path

sys.path.insert(0, str(ROOT / 'tests'))
from checking import rubric  # noqa: E402

NAME = 'captioning'
# Part of the assignment, but not of what is handed out: tests of the given code, pages for instructors.
FOR_THE_BONUS = ('lab/more/adaptive.py', 'lab/more/bahdanau.py', 'lab/more/captionnet.py', 'lab/more/cells.py',
                 'docs/extensions.md', 'docs/flickr8k_*', 'docs/images/flickr8k_*',
                 'docs/images/adaptive.png', 'docs/images/looks.png', 'tests/bonus/*')  # see instructor/bonus.py
KEPT_BACK = ('tests/given/*', 'docs/grading.md', 'docs/instructors.md', 'README.md', 'docs/README.zh.md',
             'docs/images/zh/*', *FOR_THE_BONUS)
ASSIGNMENT = ROOT / 'instructor' / 'ASSIGNMENT.md'
LANGUAGES = {'en': ('task', 'points', 'in all'), 'zh': ('任务', '分值', '合计')}  # -> table of points in ASSIGNMENT.md
PACKED_AT = (2020, 1, 1, 0, 0, 0)  # so that the same content gives the same zip
PHOTOS = box.PHOTOS.relative_to(ROOT).as_posix()
SHORTEST = 15  # a line of the solution with fewer characters, such as "return h, c", gives nothing away


class HandoutError(Exception):
    """The handout holds something it must not, or lacks something."""


def files(language='en'):
    """What is handed out: path in the folder -> content.

    :param language: 'en' or 'zh'
    """
    found = {}
    for path in wanted_files():
        if any(path.match(pattern) for pattern in KEPT_BACK):
            continue
        content = (ROOT / path).read_bytes()
        if path.suffix == '.ipynb':
            content = without_outputs(content.decode()).encode()
        if path.name == 'compare.ipynb':
            content = with_runs_of_the_lab(content.decode()).encode()
        if (name := path.as_posix()) in BONUS.values():
            content = student_source(content.decode(), name).encode()
        found[path.as_posix()] = content
    found['models.py'] = student_source(REFERENCE.read_text(encoding='utf-8')).encode()
    found['ASSIGNMENT.md'] = ASSIGNMENT.read_bytes()
    if language == 'zh':
        found = in_chinese(found)
        found['requirements.txt'] += b'mplfonts==0.0.11\n'  # a font for the figures
    found['ASSIGNMENT.md'] = assignment(found['ASSIGNMENT.md'].decode(), found['tests/rubric.toml'].decode(),
                                        *LANGUAGES[language]).encode()
    return dict(sorted(found.items()))


def in_chinese(found):
    """What is handed out, in Chinese as far as it has been translated.

    :param found: path in the folder -> content
    """
    sources = {source.removeprefix('instructor/'): source for source in translate.SOURCES}
    texts = {name: translate.translated(sources[name], content.decode()).encode()
             for name, content in found.items() if name in sources}
    results = {name: with_chinese_mistakes(content) for name, content in found.items() if name.endswith('expected.npz')}
    labels = {**{f'lab/{name}': (translate.FOLDER / name).read_bytes() for name in ('labels.json', 'labels.py')},
              'notes/matplotlibrc': b'figure.hooks: lab.labels:draw_in_chinese\n'}
    figures = {english: (ROOT / chinese).read_bytes() for english, chinese in translate.FIGURES.items()}
    return found | texts | results | labels | figures


def with_chinese_mistakes(expected_results):
    """The file of expected results with what known mistakes are in Chinese, where it has been translated."""
    index, numbers = content_of(expected_results)
    said = {about: known for source in translate.SOURCES if '/mistakes/' in source
            for about, known in translate.chinese(source).items()}
    index['mistakes'] = {request: {said.get(about, about): signatures for about, signatures in known.items()}
                         for request, known in index['mistakes'].items()}
    return as_file(index, numbers)


def with_runs_of_the_lab(notebook):
    """compare.ipynb with those of its runs that need no TODO but the lab's own 1 to 5."""
    notebook = json.loads(notebook)
    cell, = (cell for cell in notebook['cells'] if 'parameters' in cell['metadata'].get('tags', []))
    lines = ''.join(cell['source']).splitlines(keepends=True)
    runs, = (node.value for node in ast.parse(''.join(lines)).body
             if isinstance(node, ast.Assign) and node.targets[0].id == 'runs')
    dropped = set()
    for key, value in zip(runs.keys, runs.values, strict=True):
        own = {argument.arg: ast.literal_eval(argument.value) for argument in value.keywords
               if argument.arg != 'decoder_options'}
        if own.keys() & {'decoder', 'ensemble', 'self_critical'} or own.get('start_from') in dropped:
            dropped.add(key.value)
            lines[key.lineno - 1:value.end_lineno] = [''] * (value.end_lineno - key.lineno + 1)
    cell['source'] = ''.join(lines).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + '\n'


def assignment(text, rubric, task, points, in_all):
    """ASSIGNMENT.md with the titles and points of the rubric in it.

    :param text: with places for them
    :param rubric: the file
    :param task, points, in_all: words of the table of points
    """
    rubric = tomllib.loads(rubric)
    rows, total = [f'| {task} | {points} |', '|:---|---:|'], 0
    for key, entry in rubric.items():
        if todo := re.fullmatch(r'todo(\d+)', key):
            name, colon, what = re.split('([:：])', entry['title'], maxsplit=1)
            title, value = f'`{name}`{colon}{what}', sum(entry['points'].values())
            text = text.replace(f'{{{{TODO {todo[1]}}}}}', title)
            rows.append(f'| TODO {todo[1]}: {title} | {value} |')
            total += value
    for entry in rubric['by_a_person']:
        rows.append(f"| {entry['title']} | {entry['points']} |")
        total += entry['points']
    rows.append(f'| **{in_all}** | **{total}** |')
    return text.replace('{{points}}', '\n'.join(rows))


def pack(content, above=f'{NAME}/'):
    """
    :param content: path -> content
    :param above: what the zip has before each path
    :return: the bytes of the zip; what begins with #! is a program there
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(above + name, PACKED_AT)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if data.startswith(b'#!') else 0o100644) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def build(folder, language='en'):
    """Write the folder and the zip.

    :param folder: emptied first
    :param language: 'en' or 'zh'
    :return: folder with the assignment, zip file
    """
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    content = files(language)
    for name, data in content.items():
        path = folder / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with atomic_path(folder / f'{NAME}.zip') as temporary:
        temporary.write_bytes(pack(content))
    return folder / NAME, folder / f'{NAME}.zip'


# --- What is proved on the result ---


def solution_lines(path=REFERENCE):
    """The lines between a file's solution markers that say something, without spaces at the ends."""
    blocks = re.findall(f'{BEGIN}\n(.*?){END}', path.read_text(encoding='utf-8'), re.S)
    lines = {line.strip() for block in blocks for line in block.splitlines()}
    return {line for line in lines if len(line) >= SHORTEST}


def prove_nothing_is_given_away(archive):
    """Look through every file of the zip.

    :raises HandoutError: a solution line, a file that is not for students, outputs or names in a notebook
    """
    solution = solution_lines()
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            data = packed.read(name)
            path = name.removeprefix(f'{NAME}/')
            allowed = path.endswith(('.py', '.ipynb', '.md', '.toml', '.txt', '.json', '.png', '.jpg', '.css', '.js')) \
                or path in ('weights/shapes_cnn.pth', PHOTOS, 'tests/expected.npz', 'notes/matplotlibrc')
            if not allowed or path.startswith(('instructor', '.', 'build')) or '__pycache__' in path:
                raise HandoutError(f'{path} is not for students')
            if path == PHOTOS:
                prove_only_weights(path, data)
            text = data.decode('utf-8', errors='replace')
            if path == 'models.py':  # the TODOs' steps are comments
                text = re.sub(r'^ *#.*$', '', text, flags=re.M)
            if path.endswith('.ipynb'):
                prove_notebook_is_clean(path, json.loads(text))
                text = '\n'.join(''.join(cell['source']) for cell in json.loads(text)['cells'])
            for line in solution:
                if line in text or line.encode() in data and path != 'models.py':
                    raise HandoutError(f'{path} holds a line of the solution: {line}')
            if BEGIN in text or END in text:
                raise HandoutError(f'{path} holds a solution marker')


def prove_only_weights(path, data):
    """A file of safetensors begins with a JSON of what is in it."""
    header = json.loads(data[8:8 + int.from_bytes(data[:8], 'little')])
    values = header.pop('__metadata__')
    if {*values} != {*box.VALUES} or {w['dtype'] for w in header.values()} - {'I8', 'F32', 'I64'}:
        raise HandoutError(f'{path} holds something else than weights, settings and vocabulary')


def prove_notebook_is_clean(path, notebook):
    extra = set(notebook['metadata']) - {'kernelspec', 'language_info'}
    if extra:
        raise HandoutError(f'{path} holds metadata: {", ".join(sorted(extra))}')
    for cell in notebook['cells']:
        if cell.get('outputs') or cell.get('execution_count') or set(cell['metadata']) - {'tags'}:
            raise HandoutError(f'{path} holds outputs or metadata of a run')


def prove_it_works(folder, scratch):
    """Do in a copy what a student does first, and what he has in the end, in an environment of its requirements.

    :raises HandoutError: something does not go as it must
    """
    scratch = Path(scratch)
    python = str(scratch / 'env' / ('Scripts/python.exe' if sys.platform == 'win32' else 'bin/python'))
    for step in tqdm([install, lint, open_todos, early_notebooks, done_todos, done_notebooks],
                     desc='prove the handout', unit='step'):
        copy = scratch / step.__name__
        shutil.copytree(folder, copy)
        step(copy, python)


def run(command, folder):
    """:return: what the command printed; :raises HandoutError: it failed"""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise HandoutError(f'{" ".join(map(str, command[1:4]))} ended with {done.returncode}:\n{done.stdout[-3000:]}')
    return done.stdout


def install(folder, python):
    """Its environment can be made."""
    venv.create(Path(python).parents[1], with_pip=True)
    run([python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', '-r', 'requirements.txt'], folder)


def lint(folder, _):
    """Every file lints with the TODOs open. The linter is ours: students need none."""
    # lines may be too long: a message in Chinese stands on one
    config = ['--config', str(folder / 'pyproject.toml'), '--ignore', 'E501']
    run([sys.executable, '-m', 'ruff', 'check', *config, '.'], folder)


def open_todos(folder, python):
    """The checks report every TODO as not done yet, and nothing as wrong."""
    printed = run([python, '-m', 'pytest', '-q', '-rs', 'tests'], folder)
    for todo in rubric():
        if not re.search(rf'TODO {todo}  \D+ 0 \D', printed):  # in words of its language
            raise HandoutError(f'TODO {todo} is not reported as not done yet:\n{printed[-3000:]}')
    if 'not done yet' not in printed or 'failed' in printed or 'error' in printed.lower():
        raise HandoutError(f'the checks say something else than "not done yet":\n{printed[-3000:]}')


TINY = """
import sys
from lab.notebooks import run_notebook
from papermill.exceptions import PapermillExecutionError
sizes = dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq', encoder='shapes_cnn',
             encoded_image_size=4, output_folder='runs/shapes', device='cpu', embed_dim=8, decoder_dim=8, epochs=1,
             batch_size=20)
few = dict(train=12, val=4, test=4)
"""


def early_notebooks(folder, python):
    """A notebook that is run too early stops at its first TODO, with one sentence."""
    for name, attention, todo in (('train_rnn', False, 1), ('train_attention', True, 3)):
        script = TINY + f"""
try:
    run_notebook('{name}.ipynb', pictures=few, cfg=dict(sizes, attention={attention}))
except PapermillExecutionError as error:
    print(error.ename, error.evalue)
"""
        printed = run([python, '-c', script], folder)
        if not re.search(rf'NotImplementedError TODO {todo}: \S+ ', printed):
            raise HandoutError(f'{name}.ipynb does not stop at TODO {todo} with its sentence:\n{printed[-2000:]}')


def done_todos(folder, python):
    """With the reference laid in, every check passes."""
    shutil.copy(REFERENCE, folder / 'models.py')
    printed = run([python, '-m', 'pytest', '-q', 'tests'], folder)
    points = sum(sum(entry['points'].values()) for entry in rubric().values())
    if not re.search(rf'\b{points} \D+ {points} ', printed):
        raise HandoutError(f'the reference does not get all points:\n{printed[-3000:]}')


def done_notebooks(folder, python):
    """With the reference laid in, the notebooks run through."""
    shutil.copy(REFERENCE, folder / 'models.py')
    run([python, '-c', TINY + """
for name, attention in (('train_rnn', False), ('train_attention', True)):
    run_notebook(f'{name}.ipynb', pictures=few, cfg=dict(sizes, attention=attention))
for name in ('test', 'caption'):
    run_notebook(f'{name}.ipynb')
run_notebook('compare.ipynb', pictures=few, cfg=sizes, shown=[0], output_folder='runs/compare')
"""], folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--language', choices=LANGUAGES, default='en', help='of its texts')
    language = parser.parse_args().language
    try:
        folder, archive = build(ROOT / 'build' / ('handout' if language == 'en' else f'handout_{language}'), language)
        prove_nothing_is_given_away(archive)
        with tempfile.TemporaryDirectory() as scratch:
            prove_it_works(folder, scratch)
    except HandoutError as error:
        sys.exit(f'error: {error}')
    print(f'\nfolder  {folder}\nzip     {archive}  ({archive.stat().st_size / 1e6:.1f} MB)')
    if language == 'zh':
        paragraphs = sum(len(translate.english(source)) for source in translate.SOURCES)
        missing = sum(len(translate.behind(source)) for source in translate.SOURCES)
        print(f'{missing} of {paragraphs} paragraphs are still in English: python -m instructor.translate')


if __name__ == '__main__':
    main()
