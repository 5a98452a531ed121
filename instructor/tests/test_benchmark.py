"""What the benchmark calls the usual way computes the same as the lab, only slower; and the table comes out."""

import pytest
import torch

from beam_search import beam_search
from instructor import benchmark, textbook

SIZES = dict(embed_dim=7, decoder_dim=10, vocab_size=13, encoder_dim=6)
WORD_MAP = {'<pad>': 0, **{f'w{i}': i for i in range(1, 10)}, '<unk>': 10, '<start>': 11, '<end>': 12}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    return textbook.reference_models(tmp_path_factory.mktemp('models'))


@pytest.mark.parametrize('attends', [False, True])
def test_textbook_forward(models, attends):
    torch.manual_seed(0)
    decoder = models.DecoderWithAttention(9, **SIZES) if attends else models.DecoderWithRNN(**SIZES)
    decoder.eval()
    batch = torch.randn(5, 8, 6), torch.randint(1, 10, (5, 12)), torch.tensor([4, 11, 2, 7, 9]).unsqueeze(1)
    for one, other in zip(textbook.forward(decoder, *batch), decoder(*batch), strict=True):
        assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other), atol=1e-6)


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


def test_table(models, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, 'SIZES', SIZES)
    in_turns = benchmark.in_turns
    monkeypatch.setattr(benchmark, 'in_turns', lambda *functions, rounds=0: in_turns(*functions, rounds=1, repeats=1))
    monkeypatch.setattr('sys.argv', ['benchmark', 'training', 'matrix_rate'])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith('|')]
    assert len(rows) == 2 + 7 + 1 and {line.count('|') for line in rows} == {5}


def test_unknown_part(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['benchmark', 'everything'])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert 'unknown part everything; known are training, ' in capsys.readouterr().err
