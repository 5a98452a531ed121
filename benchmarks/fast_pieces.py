"""What each piece of ``lab/train/fast.py`` buys: ``python -m benchmarks.fast_pieces``.

Training steps of soft attention, ``by_picture``, as in ``benchmarks.bench``, all in turns in one process. Each row has
the pieces of those above it as well; what a row does not have yet is done by a stand-in, as the textbook loop does it.
"""

import tempfile
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks import bench, textbook
from lab.train import fast


def stand_ins(setting):
    """:return: dict: piece -> (where it is, its name there, what the textbook loop has in its place)"""
    fc = setting.decoder.fc

    lengths = (setting.lengths - 1).sort(descending=True).values
    sizes = [int((lengths > t).sum()) for t in range(lengths[0])]

    def words_step_by_step(embeddings, weight):
        return torch.cat([F.linear(rows, weight) for rows in embeddings.split(sizes)])

    def scores_step_by_step(states):
        scores = states.new_zeros(sizes[0], len(sizes), fc.out_features)
        for t, rows in enumerate(states.split(sizes)):
            scores[:len(rows), t] = F.linear(rows, fc.weight, fc.bias)
        return pack_padded_sequence(scores, lengths, batch_first=True).data

    def score(keys, query, w, *_):
        return torch.relu(keys[:len(query)] + query.unsqueeze(1)) @ w

    return {"the words' part of the gates once for all words": (fast, 'F', SimpleNamespace(linear=words_step_by_step)),
            'the vocabulary layer once, over true words': (fc, 'forward', scores_step_by_step),
            "the scores' own gradient (`Score`)": (fast, 'Score', SimpleNamespace(apply=score))}


def rows(setting):
    """:return: list of (name, function): a training step with each piece, and with those before it"""
    def step(missing):
        with ExitStack() as stack:
            for where, name, other in missing:
                stack.enter_context(mock.patch.object(where, name, other))
            setting.fast_step()

    pieces = stand_ins(setting)
    names, missing = list(pieces), list(pieces.values())
    return [('the textbook loop', setting.textbook_step),
            ('+ keys once per picture, one product with h, gradients of weights once', lambda: step(missing)),
            *((f'+ {name}', lambda i=i: step(missing[i:])) for i, name in enumerate(names, 1))]


def main():
    machine = bench.Machine('cpu')
    with tempfile.TemporaryDirectory() as folder:
        models = textbook.reference_models(folder)
    table = {}
    for cells in (64, 196):
        names, steps = zip(*rows(bench.Setting(models, machine, 'soft attention', cells)), strict=True)
        times = machine.in_turns(*(lambda step=step: machine.best(step) for step in steps), rounds=4)
        for name, seconds in zip(names, times, strict=True):
            table.setdefault(name, []).append(f'{bench.CAPTIONS / seconds:.0f} | {times[0] / seconds:.1f}')
    print('| | captions/s, 64 cells | times | captions/s, 196 cells | times |\n|:---|---:|---:|---:|---:|')
    for name, figures in table.items():
        print(f'| {name} | {" | ".join(figures)} |')


if __name__ == '__main__':
    main()
