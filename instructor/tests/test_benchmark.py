"""What the benchmark calls the usual way computes the same as the lab, only slower; and the table comes out."""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
import torch

from benchmarks import bench, fast_pieces, gpu, textbook
from lab.decode.beam_search import beam_search
from lab.train.forward import true_words
from solver import caption_loss

SIZES = dict(embed_dim=7, decoder_dim=10, vocab_size=13, encoder_dim=6)
WORD_MAP = {'<pad>': 0, **{f'w{i}': i for i in range(1, 10)}, '<unk>': 10, '<start>': 11, '<end>': 12}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    return textbook.reference_models(tmp_path_factory.mktemp('models'))


def test_textbook_encode(models):
    torch.manual_seed(0)
    encoder = models.Encoder('resnet18', 14, weights=None).double()  # single precision rounds otherwise in each layout
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        expected = encoder(images)
        assert expected.dtype == torch.float64
        assert (textbook.encode(encoder, images) - expected).abs().max() <= 1e-9 * expected.abs().max()


@pytest.mark.parametrize('attends', [False, True])
def test_textbook_forward(models, attends):
    torch.manual_seed(0)
    decoder = models.DecoderWithAttention(9, **SIZES) if attends else models.DecoderWithRNN(**SIZES)
    decoder.eval()
    batch = torch.randn(5, 8, 6), torch.randint(1, 10, (5, 12)), torch.tensor([4, 11, 2, 7, 9]).unsqueeze(1)
    for one, other in zip(textbook.forward(decoder, *batch), decoder(*batch), strict=True):
        assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other), atol=1e-6)
    expected = caption_loss(*true_words(decoder(*batch))[:3], alpha_c=1.0)
    assert torch.allclose(textbook.loss(textbook.forward(decoder, *batch)), expected, atol=1e-6)


@pytest.mark.parametrize('attends', [False, True])
@pytest.mark.parametrize('beam_size', [1, 3])
def test_textbook_search(models, attends, beam_size):
    compared = 0
    for seed in range(12):
        torch.manual_seed(seed)
        decoder = models.DecoderWithAttention(9, **SIZES) if attends else models.DecoderWithRNN(**SIZES)
        decoder.eval()
        with torch.no_grad():
            for parameter in decoder.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0, 0.7)
            decoder.fc.bias[torch.tensor([0, 10, 11])] = -100  # a trained decoder never says these
        pictures = torch.randn(6, 8, 6)
        together = beam_search(decoder, pictures, WORD_MAP, beam_size, max_len=40)
        for picture, found in zip(pictures, together, strict=True):
            if found.finished and found.words:
                words = textbook.beam_search(decoder, picture.unsqueeze(0), WORD_MAP, beam_size, max_len=41)
                assert words[1:-1] == found.words
                compared += 1
    assert compared >= 6


@pytest.mark.parametrize('part', [
    pytest.param(part, marks=[pytest.mark.slow] * (part in ('encoding', 'searching'))) for part in bench.PARTS])
def test_table(monkeypatch, tmp_path, capsys, part):
    monkeypatch.setattr('sys.argv', ['bench', part, '--small', f'--output-folder={tmp_path}'])
    bench.main()
    written = json.loads((tmp_path / 'bench.json').read_text())
    table = (tmp_path / 'bench.md').read_text()
    assert table in capsys.readouterr().out
    rows = table.splitlines()[2:]
    assert len(rows) == len(written['rows']) == dict(preparing=1, encoding=7, training=11, searching=6)[part]
    for row, line in zip(written['rows'], rows, strict=True):
        assert row['ours'] > 0 and line.count('|') == 7
        if row['usual']:
            assert f"**{row['ours'] / row['usual']:.1f}**" in line
            assert row['usual_mb'] >= 0 and row['ours_mb'] >= 0
    if part == 'training':
        assert 0 < written['rows'][-1]['share'] < 1
        assert written['hours_of_ten_epochs_of_coco']['ours'] > 0


def test_the_usual_way_does_all_that_is_said_of_it(models, monkeypatch):
    """Keys at every word, the encoder for every caption, each picture searched five times."""
    seen = dict(keys=0, encoded=0, searched=0, fast=0)

    def counting(name, real, of):
        def count(*given, **options):
            seen[name] += of(*given)
            return real(*given, **options)
        return count

    machine = bench.Machine('cpu', small=True)
    setting = bench.Setting(models, machine, 'soft attention', 64)
    setting.decoder.attention.encoder_att.register_forward_hook(lambda *_: seen.update(keys=seen['keys'] + 1))
    monkeypatch.setattr(bench.fast, 'fast_forward', counting('fast', bench.fast.fast_forward, lambda *_: 1))
    setting.textbook_step()
    assert seen['keys'] == setting.lengths.max() - 1 and not seen['fast']
    setting.fast_step()
    assert seen['fast'] == 1

    monkeypatch.setattr(textbook, 'encode', counting('encoded', textbook.encode, lambda _, images: len(images)))
    monkeypatch.setattr(textbook, 'beam_search', counting('searched', textbook.beam_search, lambda *_: 1))
    ours, of_usual = [], {}
    monkeypatch.setattr(bench, 'beam_search', lambda decoder, grids, *rest: ours.append(len(grids)))

    def row(what, unit, usual, own, **_):
        seen.update(encoded=0, searched=0)
        usual[0]()
        of_usual[what] = seen['encoded'] / usual[1], seen['searched'] / usual[1]
        own[0]()
        return {}

    monkeypatch.setattr(machine, 'row', row)
    list(bench.encoding(models, machine))
    assert [count for what, count in of_usual.items()] == [(5, 0), (5, 0), (5, 0), (5, 0), (1, 1), (5, 5), (5, 5)]
    of_usual.clear()
    ours.clear()
    list(bench.searching(models, machine))
    assert set(of_usual.values()) == {(0, 5)} and ours == [32] * 6


def test_half_precision_is_of_the_labs_own_way(monkeypatch, tmp_path):
    seen = dict(forward=set(), fast_forward=set())
    for module, name in ((textbook, 'forward'), (bench.fast, 'fast_forward')):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, real=real, name=name: (
            seen[name].add(torch.is_autocast_enabled('cpu')), real(*given))[1])
    # the usual ways here as well, where they are seen
    monkeypatch.setattr(bench, 'in_another_process', lambda *_: contextlib.nullcontext())
    for given, half in ((['--bf16'], True), ([], False)):
        monkeypatch.setattr('sys.argv', ['bench', 'training', '--small', f'--output-folder={tmp_path}', *given])
        bench.main()
        assert seen == dict(forward={False}, fast_forward={half})
        written = json.loads((tmp_path / 'bench.json').read_text())
        assert written['bf16'] is half
        seen = {name: set() for name in seen}


def test_peak_memory():
    machine = bench.Machine('cpu')
    assert machine.peak(lambda: torch.ones(50_000_000)) == pytest.approx(200, rel=0.1)
    assert machine.peak(lambda: None) < 5


def test_stand_ins_for_the_pieces_of_the_fast_form_compute_the_same(models, monkeypatch, capsys):
    setting = bench.Setting(models, bench.Machine('cpu', small=True), 'soft attention', 64)
    setting.decoder.eval()  # dropout draws in another order
    losses, update = [], setting.update
    monkeypatch.setattr(setting, 'update', lambda loss, *_: (
        losses.append(loss.item()), setting.decoder.zero_grad(), update(loss),
        losses.append(sum(p.grad.square().sum() for p in setting.decoder.parameters()).item())))
    steps = fast_pieces.rows(setting)
    for _, step in steps:
        step()
    assert losses == pytest.approx(losses[:2] * len(steps), rel=1e-4)
    monkeypatch.setattr('sys.argv', ['fast_pieces', '--small'])
    fast_pieces.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(' | ')[0][2:] for line in lines] == [name for name, _ in steps]


def test_unknown_part(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['bench', 'everything'])
    with pytest.raises(SystemExit):
        bench.main()
    assert 'unknown part everything; known are preparing, ' in capsys.readouterr().err


def test_of_the_size_of_coco(tmp_path):
    """The whole way of a training, at other sizes; nothing but the table is left."""
    given = ['--pictures=30', '--others=7', '--words=40', '--encoder=resnet18', '--epochs=1', '--batch-size=50',
             f'--output-folder={tmp_path / "out"}', f'--build={tmp_path / "build"}', '--device=cpu']
    ran = subprocess.run([sys.executable, '-m', 'benchmarks.coco', *given], cwd=bench.ROOT, capture_output=True,
                         text=True)
    assert ran.returncode == 0, ran.stderr
    assert 'encode val' in ran.stderr and 'encode t' not in ran.stderr  # random features are there for the others
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {'coco.json', 'coco.md'}
    table = (tmp_path / 'out' / 'coco.md').read_text()
    assert table in ran.stdout
    rows = {what: (value, unit, of_all) for what, value, unit, of_all in
            json.loads((tmp_path / 'out' / 'coco.json').read_text())['rows']}
    assert len(rows) == 9 and all(value > 0 for value, *_ in rows.values())
    seconds, _, of_all = rows['an epoch of 150 captions, the best of 1']
    assert of_all == pytest.approx(seconds * 113_287 / 30)
    assert rows['captions'][0] == pytest.approx(150 / seconds)


def test_reading_at_the_size_of_coco(tmp_path):
    given = ['--read', '--pictures=150', '--others=7', '--words=40', '--encoder=resnet18',
             f'--output-folder={tmp_path / "out"}', f'--build={tmp_path / "build"}']
    ran = subprocess.run([sys.executable, '-m', 'benchmarks.coco', *given], cwd=bench.ROOT, capture_output=True,
                         text=True)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / 'out' / 'coco.json').read_text())['rows']
    assert [what.split(', shuffled ')[1].split(',')[0] for what, *_ in rows] == [
        'among 6', 'among all pictures'] and all(value > 0 for _, value, *_ in rows)


def test_too_little_disk_space(tmp_path):
    ran = subprocess.run([sys.executable, '-m', 'benchmarks.coco', '--pictures=1000000000',
                          f'--output-folder={tmp_path}', f'--build={tmp_path / "build"}'], cwd=bench.ROOT,
                         capture_output=True, text=True)
    assert ran.returncode == 2 and 'take fewer --pictures' in ran.stderr
    assert not list(tmp_path.glob('*.*'))


def test_check_of_a_gpu_runs_every_section(tmp_path):
    ran = subprocess.run([sys.executable, '-m', 'benchmarks.gpu', '--small', '--device=cpu',
                          f'--output={tmp_path / "gpu.md"}'], cwd=bench.ROOT, capture_output=True, text=True,
                         env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / 'gpu.md').read_text() in ran.stdout
    rows = json.loads((tmp_path / 'gpu.json').read_text())['rows']

    def here(part, unit=''):
        return [row['here'] for row in rows if part in row['what'] and row['unit'] == unit]

    assert here('difference') == [0] * 4  # the CPU from itself
    for part, unit, count in (('training step', 'captions/s', 12), ('ResNet-101, encoding', 'pictures/s', 2),
                              ('fine-tuning', 'pictures/s', 2), ('beam 5', 'pictures/s', 2), ('.ipynb', 'minutes', 2)):
        assert len(here(part, unit)) == count and min(here(part, unit)) > 0
    resumed = [row for row in rows if 'resumed' in row['what']]
    assert len(resumed) == 2 and all(row['here'] == row['beside'] > 0 for row in resumed)
    assert len(here('BLEU-4')) == 8 and all(0 <= score <= 1 for score in here('BLEU-4'))


@pytest.mark.parametrize('factor', [1.1, float('nan')])
def test_wrong_step_of_a_device_is_found(models, monkeypatch, factor):
    """As by a device whose LSTM computes something else."""
    made = []

    def setting(*given, **options):
        made.append(bench.Setting(*given, **options))
        if len(made) % 2:  # the device's comes before the CPU's
            made[-1].decoder.decode_step.weight_hh.data *= factor
        return made[-1]

    monkeypatch.setattr(gpu, 'Setting', setting)
    rows = gpu.run(gpu.STEPS, models, 'cpu', small=True)
    assert len(rows) == 4 and all("differs from the CPU's" in row['error'] for row in rows)


def test_section_that_fails_or_takes_too_long_leaves_its_error(capsys):
    def fails(*_):
        yield gpu.row('done before', '', 0.5)
        raise ValueError('no\nroom | left')

    def endless(*_):
        while True:
            time.sleep(0.01)
            yield from ()

    rows = gpu.run({'one': (0.2, fails), 'two': (0.2, endless), 'three': (0.2, fails)}, None, 'cpu', small=True)
    assert [row['what'] for row in rows] == ['done before', 'one', 'two', 'done before', 'three']
    table = gpu.markdown(rows)
    assert table.count('no room / left') == 2 and 'OutOfTime' in table
    assert len({line.count('|') for line in table.splitlines()}) == 1
