"""What the benchmark calls the usual way computes the same as the lab, only slower; and the table comes out."""

import json

import pytest
import torch
from helpers import run_module

from benchmarks import bench, gpu, textbook
from lab.decode.beam_search import beam_search
from lab.train.model import true_words
from solver import caption_loss

WORD_MAP = {'<pad>': 0, **{f'w{i}': i for i in range(1, 10)}, '<unk>': 10, '<start>': 11, '<end>': 12}
both = pytest.mark.parametrize('attends', [False, True])


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    return textbook.reference_models(tmp_path_factory.mktemp('models'))


def make_decoder(models, attends, seed=0):
    torch.manual_seed(seed)
    decoder = models.DecoderWithAttention(9, **bench.SMALL) if attends else models.DecoderWithRNN(**bench.SMALL)
    return decoder.eval()


def test_textbook_encode(models):
    torch.manual_seed(0)
    encoder = models.Encoder('resnet18', 14, weights=None).double()  # single precision rounds otherwise in each layout
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        expected = encoder(images)
        assert (textbook.encode(encoder, images) - expected).abs().max() <= 1e-9 * expected.abs().max()


@both
def test_textbook_forward(models, attends):
    decoder = make_decoder(models, attends)
    batch = torch.randn(5, 8, 6), torch.randint(1, 10, (5, 12)), torch.tensor([4, 11, 2, 7, 9]).unsqueeze(1)
    for one, other in zip(textbook.forward(decoder, *batch), decoder(*batch), strict=True):
        assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other), atol=1e-6)
    expected = caption_loss(*true_words(decoder(*batch))[:3], alpha_c=1.0)
    assert torch.allclose(textbook.loss(textbook.forward(decoder, *batch)), expected, atol=1e-6)


@both
@pytest.mark.parametrize('beam_size', [1, 3])
def test_textbook_search(models, attends, beam_size):
    compared = 0
    for seed in range(12):
        decoder = make_decoder(models, attends, seed)
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
    rows = json.loads((tmp_path / 'bench.json').read_text())['rows']
    table = (tmp_path / 'bench.md').read_text()
    assert table in capsys.readouterr().out and all(row['what'] in table for row in rows)
    assert all(row['usual'] > 0 and row['ours'] > 0 and row['ours_mb'] >= 0 for row in rows)


@pytest.mark.slow
def test_of_the_size_of_coco(tmp_path):
    """The whole way of a training, at other sizes; nothing but the table is left."""
    given = ['--words=40', '--encoder=resnet18', '--epochs=1', '--batch-size=50', f'--output-folder={tmp_path / "out"}',
             f'--build={tmp_path / "build"}', '--device=cpu', '--others=7']
    printed = run_module('benchmarks.coco', '--pictures=30', *given)
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {'coco.json', 'coco.md'}
    assert (tmp_path / 'out' / 'coco.md').read_text() in printed
    rows = {what: (value, of_all) for what, value, _, of_all in
            json.loads((tmp_path / 'out' / 'coco.json').read_text())['rows']}
    assert all(value > 0 for value, _ in rows.values())
    seconds, of_all = rows['an epoch of 150 captions, the best of 1']
    assert of_all == pytest.approx(seconds * 113_287 / 30) and rows['captions'][0] == pytest.approx(150 / seconds)
    assert '--pictures' in run_module('benchmarks.coco', '--pictures=1000000000', *given, code=2)  # no space for them


@pytest.mark.slow
def test_check_of_a_gpu_runs_every_section(tmp_path):
    printed = run_module('benchmarks.gpu', '--small', '--device=cpu', f'--output={tmp_path / "gpu.md"}')
    assert (tmp_path / 'gpu.md').read_text() in printed
    rows = json.loads((tmp_path / 'gpu.json').read_text())['rows']
    differences = [row['here'] for row in rows if 'difference' in row['what']]
    assert len(differences) == 4 and set(differences) == {0}  # the CPU from itself
    assert all(row['here'] > 0 for row in rows if row['unit'])
    resumed = [row for row in rows if 'resumed' in row['what']]
    assert len(resumed) == 2 and all(row['here'] == row['beside'] > 0 for row in resumed)


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
