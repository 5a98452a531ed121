"""Grade submissions: ``python -m instructor.grade SUBMISSION... --output grades``.

Each submission (a folder, a zip or a ``models.py``) is laid over a clean assignment. Its code runs in a sandbox, on
the inputs of the public checks and on others of other sizes, drawn anew for each run of the grader. Points are given
in this process, which never runs the submission's code, by the same checks that students have. Per submission a page
and Gradescope's ``results.json`` are written, over all ``grades.csv`` and ``similar.md``.
"""

import argparse
import csv
import dataclasses
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
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from instructor.assemble import ROOT, assemble
from instructor.cut import REFERENCE
from instructor.expected import OF_TODO, Fresh, load, probes
from instructor.grading import evidence, similar
from instructor.grading.sandbox import Sandbox, missing_isolation
from instructor.grading.submissions import SubmissionError, read_submission
from instructor.handout import KEPT_BACK
from instructor.judge import TODOS, checking, judge
from utils import atomic_path

SECONDS = 12         # for one probe
IMPORT_SECONDS = 20  # for importing models.py
GIVE_UP_AFTER = 2    # probes of a TODO that ended like this: the rest of that TODO is not run
GIVE_UP_AT = ('TimeoutError', 'SIGKILL', 'the sandbox was ended')


# --- Inputs that a submission cannot know ---


def draw_inputs(seed):
    """Other sizes than those of the public checks, each its own, and other numbers."""
    rng, public = random.Random(seed), probes.Inputs()
    height, width = rng.choice([(2, 5), (5, 2), (3, 5), (5, 3), (4, 5), (5, 4)])
    lengths = [2, rng.randint(3, 5), rng.randint(6, 8), rng.choice([9, 10, 12])]
    lengths += [max(lengths)] + [rng.randint(3, 8) for _ in range(rng.randint(1, 2))]
    rng.shuffle(lengths)
    sizes = {'batch': len(lengths)}
    taken = {height * width, len(lengths), max(lengths) - 1}
    for name in ('encoder_dim', 'embed_dim', 'decoder_dim', 'attention_dim'):
        sizes[name] = rng.choice([n for n in range(5, 15) if n not in taken | {getattr(public, name)}])
        taken.add(sizes[name])
    # a prime number of words: no caption then says one twice, so each can be learnt by heart
    return probes.Inputs(height=height, width=width, vocab_size=rng.choice([21, 23]), lengths=tuple(lengths),
                         columns=max(lengths) + rng.randint(1, 4), shift=rng.uniform(0.2, 6.0), **sizes)


def hidden_inputs(reference, seed):
    """Inputs on which the reference itself passes every check.

    :return: inputs, what must come out
    """
    for attempt in range(50):
        inputs = draw_inputs(f'{seed} {attempt}')
        fresh = Fresh(inputs, reference)
        if not fresh.wrong():
            return inputs, fresh
    raise RuntimeError('no inputs could be drawn on which the reference passes')


class SandboxError(Exception):
    """The sandbox does not work on this machine."""


# --- One submission ---


def grade(submission, clean, hidden, fresh):
    """
    :param submission: :class:`Submission`
    :param clean: folder of a clean assignment; it is copied
    :param hidden: inputs that nobody knows; ``fresh``: what must come out for them
    :return: dict that JSON can hold: points, possible, todos, checks, notes
    """
    with tempfile.TemporaryDirectory() as folder:
        lab = Path(folder) / 'lab'
        shutil.copytree(clean, lab)
        for name, data in submission.code().items():
            (lab / name).write_bytes(data)
        os.chmod(folder, 0o755)
        with Sandbox(lab) as sandbox:
            ran = run_probes(sandbox, {'public': probes.Inputs(), 'hidden': hidden})
    stored, verdicts = checking.Stored(), []
    for todo in TODOS:
        public = judge(todo, result_of(ran['public']), stored, probes.Inputs())
        other = judge(todo, result_of(ran['hidden']), fresh, hidden)
        for shown, unseen in zip(public, other, strict=True):
            if shown.outcome == 'passed' and unseen.outcome != 'passed':
                message = ('passes on the inputs of the public checks but not on other inputs and sizes: '
                           f'is something hard-coded? {unseen.message}')
                shown = dataclasses.replace(unseen, message=message)
            verdicts.append(shown)
    return {'name': submission.name, 'points': sum(v.points for v in verdicts),
            'possible': sum(v.possible for v in verdicts), 'checks': [dataclasses.asdict(v) for v in verdicts],
            'notes': submission.notes}


def run_probes(sandbox, inputs):
    """All probes on all inputs: which -> probe -> result."""
    ran = {which: {} for which in inputs}
    as_dict = {which: dataclasses.asdict(values) for which, values in inputs.items()}
    started = sandbox.run('import', as_dict['public'], IMPORT_SECONDS)
    for todo in TODOS:
        late = 0
        for probe in OF_TODO[todo]:
            for which in inputs:
                if 'error' in started:
                    ran[which][probe] = started
                elif late >= GIVE_UP_AFTER:
                    ran[which][probe] = {'error': 'not run, since other checks of this TODO did not come to an end',
                                         'line': None}
                else:
                    ran[which][probe] = sandbox.run(probe, as_dict[which], SECONDS)
                    late += any(sign in str(ran[which][probe].get('error')) for sign in GIVE_UP_AT)
    return ran


def result_of(ran):
    """probe -> result, as the checks want it; what is no result at all raises there, and counts as failed."""
    return lambda probe: checking.from_json(ran[probe])


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
    """Without control characters: it may come from the submission."""
    return re.sub(r'[^\x20-\x7e\xa0-\uffff]', '?', str(text))[:1500]


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


def gradescope(result, seconds):
    """Gradescope's results.json."""
    return {
        'score': result['points'], 'execution_time': round(seconds), 'visibility': 'visible',
        'stdout_visibility': 'hidden', 'output': '\n'.join(map(printable, result['notes'])),
        'tests': [{'name': f"TODO {check['todo']}: {check['test'].removeprefix('test_').replace('_', ' ')}",
                   'score': check['points'], 'max_score': check['possible'], 'output': printable(check['message']),
                   'status': 'passed' if check['outcome'] == 'passed' else 'failed', 'visibility': 'visible'}
                  for check in result['checks']]}


def write_results(folder, result, seconds):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (('page.html', page(result)), ('results.json', json.dumps(gradescope(result, seconds), indent=1)),
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
                 '; '.join(map(printable, result['notes'])), '; '.join(map(printable, result.get('evidence', [])))]
        # a cell that begins like a formula would run in a spreadsheet
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell[:1] in ('=', '+', '-', '@') else cell
                         for cell in cells])
    return buffer.getvalue()


def fingerprint(path):
    """Of what was handed in and of the grader's checks: grades of anything else are not taken over."""
    digest = hashlib.sha256()
    for part in [*sorted((ROOT / 'tests').glob('*.*')), REFERENCE]:
        digest.update(part.read_bytes())
    path = Path(path)
    for part in sorted(path.rglob('*')) if path.is_dir() else [path]:
        if part.is_file() and not part.is_symlink():
            status = part.stat()
            digest.update(f'{part.relative_to(path) if part != path else ""} {status.st_size} '
                          f'{status.st_mtime_ns}'.encode())
    return digest.hexdigest()


# --- All of them ---


def grade_all(paths, output, workers=2, seed=None, progress=True):
    """Grade submissions, each by itself; what was graded before is kept.

    :param paths: folders, zips or files
    :param output: folder for pages and tables
    :param workers: how many at once
    :param seed: of the hidden inputs; None draws one that nobody knows
    :return: list of results, in the order of the paths
    """
    output = Path(output)
    with tempfile.TemporaryDirectory() as folder:
        clean = assemble(ROOT / 'models.py', Path(folder) / 'clean')
        # no more than a student has, and nothing that does a TODO: Decoder.forward does 2 and 5
        for pattern in (*KEPT_BACK, 'models.py', 'lab/more/decoder.py', 'docs', 'report', 'weights'):
            for path in list(clean.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        check_sandbox(clean)
        hidden, fresh = hidden_inputs(load(REFERENCE.read_text(encoding='utf-8'), folder), seed or secrets.token_hex())
        names = unique_names(paths)

        def one(path):
            try:
                return grade_one(path, names[path], output, clean, hidden, fresh)
            except Exception as error:  # never points for a crash of the grader, and the others go on
                result = zero(names[path], f'the grader failed: {type(error).__name__}: {error}; please grade by hand')
                write_results(output / names[path], result, 0)
                return result

        with ThreadPoolExecutor(workers) as pool:
            results = list(tqdm(pool.map(one, paths), total=len(paths), desc='grading', unit='submission',
                                disable=not progress))
    with atomic_path(output / 'grades.csv') as temporary:
        temporary.write_text(table(results), encoding='utf-8')
    with atomic_path(output / 'similar.md') as temporary:
        temporary.write_text(similar.report(dict(zip((r['name'] for r in results), paths, strict=True))),
                             encoding='utf-8')
    return results


def check_sandbox(clean):
    """:raises SandboxError: not even the reference runs in it, so zero points would mean nothing"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        lab = Path(folder) / 'lab'
        shutil.copytree(clean, lab)
        shutil.copyfile(REFERENCE, lab / 'models.py')
        with Sandbox(lab) as sandbox:
            result = sandbox.run('attention_forward', dataclasses.asdict(probes.Inputs()), SECONDS)
    if 'error' in result:
        raise SandboxError(f"the sandbox does not run even the reference ({result['error']}): Python and its packages "
                           f'in {sys.prefix} must be readable for all users')


def grade_one(path, name, output, clean, hidden, fresh):
    start, stamp = time.perf_counter(), fingerprint(path)
    try:
        kept = json.loads((output / name / 'grade.json').read_text(encoding='utf-8'))
        if kept['fingerprint'] == stamp:
            return kept
    except (OSError, ValueError, KeyError):
        pass
    try:
        submission = read_submission(path)
        submission.name = name
        result = grade(submission, clean, hidden, fresh)
        result['evidence'] = evidence.look(submission)
    except SubmissionError as error:
        result = zero(name, str(error))
    result['fingerprint'] = stamp
    write_results(output / name, result, time.perf_counter() - start)
    return result


def unique_names(paths):
    """Path -> name of its result folder."""
    found, taken = {}, set()
    for path in paths:
        stem = Path(path).stem if Path(path).name != 'models.py' else Path(path).resolve().parent.name
        stem = re.sub(r'[^\w.-]', '_', stem).strip('.') or 'submission'
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f'{stem}_{number}'
        taken.add(name)
        found[path] = name
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('submissions', nargs='+', help='folders, zips or models.py files')
    parser.add_argument('--output', type=Path, default=Path('grades'), help='folder for pages and tables')
    parser.add_argument('--workers', type=int, default=max(1, min(8, os.cpu_count() or 1)), help='how many at once')
    arguments = parser.parse_args()
    if missing_isolation():
        print(f'WARNING: {missing_isolation()}', file=sys.stderr)
    else:
        print('isolated: own files (read-only), no network, own processes; memory, time and file sizes limited')
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
