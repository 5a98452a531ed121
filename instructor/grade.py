"""Grade submissions: ``python -m instructor.grade SUBMISSION... --output grades``.

Each submission (a folder, a zip or a ``models.py``) is laid over a clean assignment. Its code runs in a sandbox, on
inputs that are drawn anew for each run of the grader, and gives back numbers. Points are given in this process, which
never runs the submission's code, by the same checks that students have. Per submission a page and Gradescope's
``results.json`` are written, over all ``grades.csv`` and ``similar.md``. docs/grading.md says how.
"""

import argparse
import base64
import csv
import dataclasses
import functools
import hashlib
import html
import io
import json
import os
import random
import re
import secrets
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from instructor.expected import TODOS, Fresh, checking, inputs, load
from instructor.grading import evidence, limited, similar
from instructor.grading.sandbox import Sandbox, has_control_group, missing_isolation
from instructor.handout import KEPT_BACK
from utils import atomic_path

Inputs = inputs.Inputs
# not laid into the sandbox: what a student does not have, and what computes a TODO
LEFT_OUT = (*KEPT_BACK, 'models.py', 'tests', 'notes', 'lab/more', 'lab/experiments', 'lab/train/fast.py', 'solver.py',
            'docs', 'report', 'weights')


# --- Inputs that a submission cannot know ---


def draw_inputs(seed):
    """Other sizes than those of the public checks, each its own, and other numbers."""
    rng, public = random.Random(seed), Inputs()
    while True:
        given = draw_once(rng, public)
        order = sorted(range(given.batch), key=lambda i: -given.lengths[i])
        sizes = given.named_sizes()
        # an order that is its own inverse would hide one that is taken for the other
        if [order[i] for i in order] != list(range(given.batch)) and len(set(sizes.values())) == len(sizes):
            return given


def draw_once(rng, public):
    height, width = rng.choice([(2, 5), (5, 2), (3, 5), (5, 3), (4, 5), (5, 4)])
    lengths = [2, rng.randint(3, 5), rng.randint(6, 8), rng.choice([11, 12, 13])]  # numbers of one and of two digits
    lengths += [max(lengths)] + [rng.randint(3, 8) for _ in range(rng.randint(1, 2))]
    rng.shuffle(lengths)
    sizes = {'batch': len(lengths)}
    taken = {height * width, len(lengths), max(lengths) - 1}
    for name in ('encoder_dim', 'embed_dim', 'decoder_dim', 'attention_dim'):
        sizes[name] = rng.choice([n for n in range(5, 15) if n not in taken | {getattr(public, name)}])
        taken.add(sizes[name])
    return Inputs(height=height, width=width, vocab_size=rng.choice([21, 23]), lengths=tuple(lengths),
                  columns=max(lengths) + rng.randint(1, 4), shift=rng.uniform(0.2, 6.0),
                  secret=rng.uniform(0.2, 6.0), rates=(rng.uniform(0.4, 0.7), rng.uniform(0.2, 0.5)),
                  more_cells=(rng.randint(5, 7), rng.randint(6, 8)), **sizes)


def hidden_inputs(reference, seed):
    """Inputs on which the reference itself passes every check.

    :return: inputs, what must come out
    """
    for attempt in range(50):
        given = draw_inputs(f'{seed} {attempt}')
        fresh = Fresh(given, reference)
        if not fresh.wrong():
            return given, fresh
    raise RuntimeError('no inputs could be drawn on which the reference passes')


class SandboxError(Exception):
    """The sandbox does not work on this machine."""


# --- One submission ---


def grade(code, clean, hidden, fresh):
    """Points for numbers: what comes out for inputs that nobody knows.

    :param code: name -> bytes of ``models.py`` and of a decoder file
    :param clean: folder of a clean assignment; it is copied
    :param hidden: inputs that nobody knows; ``fresh``: what must come out for them
    :return: list of ``checking.Verdict``; whether time ran out, perhaps since the machine was busy
    """
    with tempfile.TemporaryDirectory() as folder:
        lab = Path(folder) / 'lab'
        shutil.copytree(clean, lab)
        for name, content in code.items():
            (lab / name).write_bytes(content)
        os.chmod(folder, 0o755)
        with Sandbox(lab) as sandbox:
            unseen = checking.Subject(sandbox.ask, fresh, hidden, sandbox.yardstick)
            shown = checking.Subject(sandbox.ask, checking.Stored(), Inputs(), sandbox.yardstick)
            for todo in (1, 3, 4):  # first: later requests name the layers that a TODO asks for
                checking.judge(todo, unseen, {name for name, _ in checking.checks(todo)} - {'test_layers'})
            verdicts = [verdict for todo in TODOS for verdict in explained(checking.judge(todo, unseen), shown)]
            return verdicts, sandbox.ran_out


def explained(verdicts, shown):
    """Where a check fails, the message is that of the public inputs, for which mistakes are known by name.

    :param shown: the same submission, to be asked with these
    """
    if all(verdict.outcome != 'failed' for verdict in verdicts):
        return verdicts
    public = {verdict.test: verdict for verdict in checking.judge(verdicts[0].todo, shown)}
    for number, verdict in enumerate(verdicts):
        if verdict.outcome == 'failed':
            message = public[verdict.test].message or ('passes on the inputs of the public checks but not on other '
                                                       f'inputs and sizes: is something hard-coded? {verdict.message}')
            verdicts[number] = dataclasses.replace(verdict, message=message)
    return verdicts


def zero(name, reason):
    return {'name': name, 'points': 0, 'possible': sum(sum(e['points'].values()) for e in checking.rubric().values()),
            'checks': [], 'notes': [reason]}


# --- What is written ---


def by_todo(result):
    """TODO number -> (points, possible)"""
    found = {todo: [0, sum(entry['points'].values())] for todo, entry in checking.rubric().items()}
    for check in result['checks']:
        found[check['todo']][0] += check['points']
    return found


def printable(text):
    """Without control characters and halves of characters: it may come from the submission."""
    return re.sub(r'[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]', '?', str(text))[:1500]


def page(result):
    """A page for student and instructor, as HTML."""
    def row(cells, tag='td'):
        return '<tr>' + ''.join(f'<{tag}>{html.escape(printable(cell))}</{tag}>' for cell in cells) + '</tr>'

    out = ['<!DOCTYPE html><html lang="en"><meta charset="utf-8">',
           f'<title>{html.escape(printable(result["name"]))}</title>',
           '<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:'
           'collapse}td,th{border-bottom:1px solid #ccc;padding:.3em .8em;text-align:left;vertical-align:top}'
           '.failed{color:#a00}.open{color:#777}</style>',
           f'<h1>{html.escape(printable(result["name"]))}: {result["points"]:g} of {result["possible"]:g} points</h1>',
           '<table>', row(['TODO', 'points', ''], 'th')]
    for todo, (points, possible) in by_todo(result).items():
        out.append(row([f'TODO {todo}', f'{points:g} of {possible:g}', checking.rubric()[todo]['title']]))
    out.append('</table>')
    for title, lines in (('Notes', result['notes']), ('Evidence, for a person to look at', result.get('evidence', []))):
        if lines:
            out += [f'<h2>{title}</h2><ul>', *(f'<li>{html.escape(printable(line))}</li>' for line in lines), '</ul>']
    if result['checks']:
        out += ['<h2>Checks</h2><table>', row(['TODO', 'check', 'points', 'what came out'], 'th')]
        for check in result['checks']:
            line = row([check['todo'], check['test'].removeprefix('test_').replace('_', ' '),
                        f"{check['points']:g} of {check['possible']:g}", check['message'] or 'right'])
            out.append(line.replace('<tr>', f'<tr class="{check["outcome"]}">', 1))
        out.append('</table>')
    return '\n'.join(out) + '\n'


def gradescope(result):
    """Gradescope's results.json."""
    return {
        'score': result['points'], 'visibility': 'visible',
        'stdout_visibility': 'hidden', 'output': '\n'.join(map(printable, result['notes'])),
        'tests': [{'name': f"TODO {check['todo']}: {check['test'].removeprefix('test_').replace('_', ' ')}",
                   'score': check['points'], 'max_score': check['possible'], 'output': printable(check['message']),
                   'status': 'passed' if check['outcome'] == 'passed' else 'failed', 'visibility': 'visible'}
                  for check in result['checks']]}


def write_results(folder, result):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (('page.html', page(result)), ('results.json', json.dumps(gradescope(result), indent=1)),
                       ('grade.json', json.dumps(result, indent=1))):
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding='utf-8')


def table(results):
    """grades.csv: a row per submission."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator='\n')
    writer.writerow(['submission', 'points', 'possible', *(f'TODO {todo}' for todo in TODOS), 'notes', 'evidence'])
    for result in results:
        cells = [printable(result['name']), result['points'], result['possible'],
                 *(points for points, _ in by_todo(result).values()),
                 ' | '.join(map(printable, result['notes'])), ' | '.join(map(printable, result.get('evidence', [])))]
        # a cell that begins like a formula would run in a spreadsheet, which may take ; for the end of a cell
        writer.writerow([re.sub('^(?=[=+@-])', "'", cell.replace(';', ',')) if isinstance(cell, str) else cell
                         for cell in cells])
    return buffer.getvalue()


@functools.cache
def of_the_grader():
    """Fingerprint of checks and reference: grades by others are not taken over."""
    digest = hashlib.sha256()
    for part in [*sorted((ROOT / 'tests').glob('*.*')), REFERENCE]:
        digest.update(part.read_bytes())
    return digest.hexdigest()


# --- All of them ---


def grade_all(paths, output, workers=2):
    """Grade submissions, each by itself; what was graded before is kept.

    :param paths: folders, zips or files
    :param output: folder for pages and tables
    :param workers: how many at once
    :return: list of results, in the order of the paths
    :raises SandboxError: submissions cannot be run here
    """
    output = Path(output)
    with tempfile.TemporaryDirectory() as folder:
        clean = clean_assignment(Path(folder) / 'clean')
        check_sandbox(clean)
        hidden, fresh = hidden_inputs(load(REFERENCE.read_text(encoding='utf-8'), folder), secrets.token_hex())
        names = unique_names(paths)

        def one(path):
            try:
                return grade_one(path, names[path], output, clean, hidden, fresh)
            except Exception as error:  # never points for a crash of the grader, and the others go on
                result = zero(names[path], f'the grader failed: {type(error).__name__}: {error}; please grade by hand')
                write_results(output / 'pages' / names[path], result)
                return result, []

        with ThreadPoolExecutor(workers) as pool:
            graded = list(tqdm(pool.map(one, paths), total=len(paths), desc='grading', unit='submission'))
    results = [result for result, _ in graded]
    with atomic_path(output / 'grades.csv') as temporary:
        temporary.write_text(table(results), encoding='utf-8')
    with atomic_path(output / 'similar.md') as temporary:
        temporary.write_text(similar.report({result['name']: windows for result, windows in graded}),
                             encoding='utf-8')
    return results


def clean_assignment(folder):
    """A copy of what a student has, but for what computes a TODO."""
    clean = assemble(ROOT / 'models.py', folder)
    for pattern in LEFT_OUT:
        for path in list(clean.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return clean


def check_sandbox(clean):
    """:raises SandboxError: not even the reference runs in it, so zero points would mean nothing"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        lab = Path(folder) / 'lab'
        shutil.copytree(clean, lab)
        shutil.copyfile(REFERENCE, lab / 'models.py')
        with Sandbox(lab) as sandbox:
            error = sandbox.broken
    if error:
        raise SandboxError(f"the sandbox does not run even the reference ({error['error']}): Python and its packages "
                           f'in {sys.prefix} must be readable for all users')


def grade_one(path, name, output, clean, hidden, fresh):
    """:return: result, and what is compared with other submissions, ``similar.windows``"""
    folder = output / 'pages' / name
    try:
        read = limited.call(evidence.read, str(path))
    except limited.LimitError as error:
        read = {'error': str(error)}
    if 'error' in read:
        result = zero(name, read['error'])
        write_results(folder, result)
        return result, []
    code = {name: base64.b64decode(content) for name, content in read['code'].items()}
    stamp = f"{read['digest']} {of_the_grader()}"
    try:
        windows = limited.call(similar.windows, code['models.py'].decode(errors='replace'))
    except limited.LimitError:
        windows = []
    try:
        kept = json.loads((folder / 'grade.json').read_text(encoding='utf-8'))
        if kept['fingerprint'] == stamp:
            return kept, windows
    except (OSError, ValueError, KeyError):
        pass
    verdicts, ran_out = grade(code, clean, hidden, fresh)
    try:
        remarks = limited.call(evidence.look_at, str(path))
    except limited.LimitError as error:
        remarks = [f'what the notebooks left: {error}']
    result = {'name': name, 'points': sum(v.points for v in verdicts), 'possible': sum(v.possible for v in verdicts),
              'checks': [dataclasses.asdict(v) for v in verdicts], 'notes': read['notes'], 'evidence': remarks,
              'fingerprint': stamp}
    if ran_out:
        del result['fingerprint']  # graded again in the next run
    write_results(folder, result)
    return result, windows


def unique_names(paths):
    """Path -> name of its pages: the submission's own, and a number where another one has that name."""
    found, taken = {}, set()
    for path in paths:
        whole = Path(os.path.abspath(path))
        name = whole.parent.name if whole.name == 'models.py' else whole.name.removesuffix('.zip').removesuffix('.py')
        name = re.sub(r'[^\w.-]', '_', name).strip('.')[:60] or 'submission'  # a file's name has 255 bytes at most
        own, number = name, 1
        while own in taken:
            number += 1
            own = f'{name}_{number}'
        taken.add(own)
        found[path] = own
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('submissions', nargs='+', help='folders, zips or models.py files')
    parser.add_argument('--output', type=Path, default=Path('grades'), help='folder for pages and tables')
    parser.add_argument('--workers', type=int, default=max(1, min(8, os.cpu_count() or 1)), help='how many at once')
    parser.add_argument('--without-isolation', action='store_true',
                        help='where there is no bubblewrap: run submissions all the same, one at a time')
    arguments = parser.parse_args()
    if missing_isolation():
        print(f'WARNING: {missing_isolation()}', file=sys.stderr)
        if not arguments.without_isolation:
            sys.exit('error: install bubblewrap, or grade in a container or virtual machine that holds nothing else, '
                     'with --without-isolation')
        arguments.workers = 1
    else:
        print('isolated: own files (read-only), no network, own processes; memory, time and file sizes limited')
        if not has_control_group():
            print('no control groups here (they need root): submissions are graded one at a time, and memory is '
                  'limited for each process of a submission, not for all together')
            arguments.workers = 1
    try:
        results = grade_all(list(dict.fromkeys(arguments.submissions)), arguments.output, arguments.workers)
    except SandboxError as error:
        sys.exit(f'error: {error}')
    print()
    for result in results:
        print(f"{result['points']:3g} of {result['possible']:g}  {printable(result['name'])}"
              + ''.join(f'  [{printable(note)}]' for note in result['notes'][:1]))
    print(f'\n{arguments.output / "grades.csv"}\n{arguments.output / "similar.md"}')


if __name__ == '__main__':
    main()
