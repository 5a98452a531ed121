"""What runs leave is compared with itself; near-identical solutions are listed."""

import copy
import json
import os
import pickle

import pytest
import torch

from instructor.grading import evidence, similar
from instructor.grading.submissions import Submission
from instructor.mistakes import correct_solutions
from lab.decode.bleu import bleu

REFERENCES = [[['a', 'red', 'star', 'on', 'the', 'left']], [['two', 'blue', 'rings', 'side', 'by', 'side']]]
SAID = [['a', 'red', 'star', 'on', 'the', 'right'], ['two', 'blue', 'rings', 'side', 'by', 'side']]
WORDS = {word: i for i, word in enumerate(['<pad>', 'a', 'red', 'star', 'on', 'the', 'right', 'two', 'blue', 'rings',
                                           'side', 'by', '<unk>', '<start>', '<end>'])}


@pytest.fixture
def files():
    """What an honest submission holds: path -> content, as Python values."""
    history = [{'epoch': epoch, 'train_top5': 50.0, 'val_loss': 2.0, 'val_greedy_bleu4': score}
               for epoch, score in ((1, 0.2), (2, 0.5), (3, 0.4))]
    decoder = {'embedding.weight': torch.zeros(len(WORDS), 4), 'fc.weight': torch.zeros(len(WORDS), 6)}
    tested = {'parameters': sum(t.numel() for t in decoder.values()), 'best_epoch': 2, 'epochs': 3,
              'scores': [{'beam_size': 3, **bleu(REFERENCES, SAID)}], 'captions_beam_size': 3,
              'captions': [{'name': f'{i}.png', 'caption': said, 'references': references}
                           for i, (said, references) in enumerate(zip(SAID, REFERENCES, strict=True))]}
    run = {'cells': [{'cell_type': 'code', 'execution_count': 1, 'outputs': []}]}
    found = {name: run for name in evidence.NOTEBOOKS} | {'report/report.html': ''}
    for name in evidence.DECODERS:
        found |= {f'runs/shapes/history_{name}.json': history, f'runs/shapes/test_{name}.json': tested,
                  f'runs/shapes/figures/history_{name}.png': '',
                  f'runs/shapes/BEST_checkpoint_{name}.pth.tar': {
                      'decoder': decoder, 'word_map': WORDS, 'history': copy.deepcopy(history[:2]),
                      'settings': {'embed_dim': 4, 'decoder_dim': 6}}}
    return copy.deepcopy(found)


def look(files, tmp_path):
    def reader(path, value):
        if path.endswith('.tar') and isinstance(value, dict):
            torch.save(value, tmp_path / 'checkpoint')
            data = (tmp_path / 'checkpoint').read_bytes()
        else:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return lambda: data
    return evidence.look(Submission('somebody', {path: reader(path, value) for path, value in files.items()}))


def test_honest_runs_give_no_remark(files, tmp_path):
    assert look(files, tmp_path) == []


TEST, HISTORY = 'runs/shapes/test_Attention.json', 'runs/shapes/history_Attention.json'
CHECKPOINT = 'runs/shapes/BEST_checkpoint_Attention.pth.tar'
RAN = {'output_type': 'error', 'ename': 'ValueError'}


@pytest.mark.parametrize(('tamper', 'remark'), [
    (lambda f: f[TEST]['scores'][0].update({'BLEU-4': 0.9}), 'the table says 0.9000'),
    (lambda f: f[TEST]['captions'][0].update(caption=['a', 'red']), 'BLEU-4 of the saved captions is'),
    (lambda f: f[TEST]['captions'][1].update(name='0.png'), 'more than once'),
    (lambda f: f[TEST]['captions'][0]['caption'].append('unicorn'), 'does not know: unicorn'),
    (lambda f: f[TEST].update(best_epoch=3), 'the best epoch of the history is 2, the test says 3'),
    (lambda f: f[TEST].update(parameters=12), 'the test says 12'),
    (lambda f: f[HISTORY].pop(), 'the history has 2 epochs, the test says 3'),
    (lambda f: f[HISTORY][0].update(val_greedy_bleu4=0.3), 'not the beginning of the history'),
    (lambda f: f[CHECKPOINT]['word_map'].pop('<end>'), 'a vocabulary of 14 words and layers for 15'),
    (lambda f: f[CHECKPOINT]['settings'].update(embed_dim=5), 'word vectors are not as long'),
    (lambda f: f['test.ipynb']['cells'][0].update(execution_count=None), 'test.ipynb: was never run'),
    (lambda f: f['test.ipynb']['cells'][0]['outputs'].append(RAN), 'stopped with ValueError'),
    (lambda f: f.pop('caption.ipynb'), 'caption.ipynb: missing'),
    (lambda f: f.pop('report/report.html'), 'report/report.html is missing'),
    (lambda f: f.pop(HISTORY), 'Attention: no history of a training'),
    (lambda f: f.update({CHECKPOINT: b'nonsense'}), 'the checkpoint is not one of this lab'),
    (lambda f: f.update({TEST: b'[[['}), 'Attention: cannot be read'),
    (lambda f: f.update({TEST: {'captions': 3}}), 'cannot be read')])
def test_what_does_not_agree_is_remarked(files, tmp_path, tamper, remark):
    tamper(files)
    remarks = look(files, tmp_path)
    assert any(remark in found for found in remarks), remarks


class MakesAFolder:
    def __reduce__(self):
        return os.mkdir, ('made',)


@pytest.mark.parametrize('written', [pickle.dumps, lambda checkpoint: checkpoint], ids=['pickle', 'checkpoint'])
def test_a_checkpoint_runs_nothing(files, tmp_path, monkeypatch, written):
    monkeypatch.chdir(tmp_path)
    bad = written({**files[CHECKPOINT], 'settings': MakesAFolder()})
    assert any('the checkpoint is not one of this lab' in said for said in look({**files, CHECKPOINT: bad}, tmp_path))
    assert not (tmp_path / 'made').exists()


def test_renaming_and_comments_do_not_hide_a_copy():
    sources = {solution.name: solution.source() for solution in correct_solutions()}
    original = sources['masks, attention']
    renamed = original.replace('running', 'alive').replace('predictions', 'outputs').replace('score', 'logits')
    commented = renamed.replace('\n', '  # mine\n')
    sources = {'original': original, 'copy': commented, 'other': sources['attention inside forward']}
    found = similar.pairs({name: similar.windows(source) for name, source in sources.items()})
    assert [set(pair[1:]) for pair in found if pair[0] > 0.95] == [{'original', 'copy'}]


def test_given_code_is_left_out():
    open_todos = similar.windows((similar.ROOT / 'models.py').read_text())
    assert similar.pairs({'one': open_todos, 'other': open_todos}) == []
