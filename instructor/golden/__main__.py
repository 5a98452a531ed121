"""Golden runs: what the lab's code gives on a small data set, to be held against another state of the code.

    python -m instructor.golden record here.json               the code of this tree
    git worktree add build/before 944b65a
    python -m instructor.golden record before.json --tree build/before
    python -m instructor.golden compare before.json here.json

Compare records of one machine and one torch only: both sides are then equal to the last bit where the fast path is
off, and equal within rounding where it is on.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
PICTURES = dict(train=300, val=24, test=24)
SMALL = dict(data_folder='data/shapes', data_name='shapes_5_cap_per_img_5_min_word_freq', encoder='shapes_cnn',
             encoded_image_size=8, embed_dim=32, attention_dim=32, decoder_dim=48, batch_size=32, decoder_lr=5e-3,
             epochs=6, seed=0, device='cpu')
ADAPTIVE = 'lab.more.adaptive.DecoderWithAdaptiveAttention'
# run -> settings; those with start_from go on from the best weights of an earlier run
RUNS = {
    'plain': dict(attention=False),
    'soft': dict(attention=True, alpha_c=0.5),
    'fine-tuned': dict(attention=True, start_from='soft', fine_tune_encoder=True, epochs=1, decoder_lr=1e-3),
    'adaptive': dict(decoder=ADAPTIVE),
    'self-critical': dict(attention=True, start_from='soft', self_critical='greedy', epochs=1, decoder_lr=1e-3),
}
COMPARED = {'plain': dict(attention=False), 'soft': dict(attention=True),
            'again': dict(attention=True, start_from='soft')}
LEFT_OUT = ('seconds', 'train_seconds', 'captions', 'provenance')  # they vary, or are in captions_per_beam
ROUNDING = 2e-3  # relative; the fast path adds in another order, and three epochs of training let that grow


def steady(value):
    """A result without what is another at each run."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in LEFT_OUT}
    return [steady(item) for item in value] if isinstance(value, (list, tuple)) else value


def train_and_test():
    """Every run with the fast path off and on, in the present folder: histories, captions, BLEU."""
    import torch

    from create_input_files import create_input_files
    from lab.data.shapes import generate_shapes
    from lab.decode.evaluate import evaluate
    from lab.experiments.compare import compare
    from lab.train.checkpoints import load_model
    from solver import train

    torch.set_num_threads(1)
    generate_shapes('data/shapes', **PICTURES)
    create_input_files('shapes', 'data/shapes/dataset_shapes.json', 'data/shapes', output_folder='data/shapes')
    found = {}
    for fast in (False, True):
        best = {}
        for name, own in RUNS.items():
            cfg = {**SMALL, **own, 'fast': fast, 'output_folder': f'runs/{name}-{fast}'}
            if 'start_from' in own:
                cfg['start_from'] = str(best[own['start_from']])
            history = train(cfg)
            best[name] = next(Path(cfg['output_folder']).glob('BEST_*.pth.tar'))
            result = evaluate(load_model(best[name], 'cpu'), beam_sizes=(1, 3))
            found[f'{name}, fast path {"on" if fast else "off"}'] = steady(dict(history=history, test=result))
    comparison = compare(COMPARED, {**SMALL, 'fast': False, 'epochs': 2}, 'runs/compare', beam_sizes=(1, 3))
    found['comparison, fast path off'] = steady(comparison)
    return found


def grades(seed='golden'):
    """The verdicts on every known mistake and right solution, on hidden inputs drawn by a fixed seed."""
    import functools

    from instructor.cut import REFERENCE
    from instructor.expected import load, probes
    from instructor.grade import hidden_inputs
    from instructor.judge import TODOS, judge
    from instructor.mistakes import correct_solutions, mistakes

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        inputs, fresh = hidden_inputs(load(REFERENCE.read_text(encoding='utf-8'), folder), seed)
        for patch in [*mistakes(), *correct_solutions()]:
            models = load(patch.source(), folder)
            run = functools.cache(lambda probe, models=models: probes.run(probe, models, inputs))
            todos = [patch.todo] if patch.todo else TODOS
            # times are the machine's, not the code's
            found[patch.name] = [[verdict.test, verdict.outcome] for todo in todos
                                 for verdict in judge(todo, run, fresh, inputs) if 'fast' not in verdict.test]
    return found


def record(output, tree):
    """Run everything on an assembled copy of ``tree``, in a process of its own."""
    output, tree = Path(output).resolve(), Path(tree).resolve()
    environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
    with tempfile.TemporaryDirectory() as folder:
        lab = Path(folder) / 'lab'
        subprocess.run([sys.executable, '-m', 'instructor.assemble', 'instructor/models.py', str(lab)], cwd=tree,
                       check=True, stdout=subprocess.DEVNULL)
        for part, where in (('train_and_test', lab), ('grades', tree)):
            code = (f'import sys, json, importlib.util; sys.path.insert(0, {str(where)!r}); '
                    f'spec = importlib.util.spec_from_file_location("golden", {str(HERE)!r}); '
                    'golden = importlib.util.module_from_spec(spec); spec.loader.exec_module(golden); '
                    f'json.dump(golden.{part}(), open({str(Path(folder) / part)!r}, "w"))')
            subprocess.run([sys.executable, '-c', code], cwd=where, check=True, env=environment)
        found = {**json.loads((Path(folder) / 'train_and_test').read_text()),
                 'grades': json.loads((Path(folder) / 'grades').read_text())}
    output.write_text(json.dumps(found))


def differences(one, other, where='', rounding=0.0):
    """Lines of text: where two records differ, numbers by more than ``rounding`` (relative)."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                yield f'{where}/{key}: only in the {"first" if key in one else "second"}'
            else:
                loose = ROUNDING if where == '' and 'fast path on' in key else rounding
                yield from differences(one[key], other[key], f'{where}/{key}', loose)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f'{where}/{place}', rounding)
    elif isinstance(one, float) and isinstance(other, float) and abs(one - other) <= rounding * max(abs(one), 1):
        return
    elif one != other:
        yield f'{where}: {str(one)[:60]} and {str(other)[:60]}'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest='what', required=True)
    recording = parts.add_parser('record')
    recording.add_argument('output')
    recording.add_argument('--tree', default='.', help='the code to run: a clone or a worktree')
    comparing = parts.add_parser('compare')
    comparing.add_argument('one')
    comparing.add_argument('other')
    arguments = parser.parse_args()
    if arguments.what == 'record':
        record(arguments.output, arguments.tree)
    else:
        found = list(differences(*(json.loads(Path(path).read_text()) for path in (arguments.one, arguments.other))))
        print('\n'.join(found[:40]) or 'equal')
        sys.exit(bool(found))


if __name__ == '__main__':
    main()
