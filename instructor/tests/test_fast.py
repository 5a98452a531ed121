"""Known mistakes train as they are written: ``fast_forward`` must not take the place of a wrong ``forward``."""

import pytest
import torch

from instructor.expected import load
from instructor.mistakes import correct_solutions, mistakes
from lab.train.fast import difference

# fast_forward uses the decoder's own init_hidden_state, so what is wrong there stays; it has no use for a device, a
# dtype, a column too many, keys that are not handed in, a seed or a slow loop in what it replaces; and it leaves its
# inputs
SHARED = {'__init__', 'init_hidden_state'}
HARMLESS = {'all columns', 'made on the CPU', 'caption by caption', 'double precision', 'pixel by pixel',
            'lengths changed in place', 'keys kept from the first call', 'encoder_att forgotten', 'captions as floats',
            'seed in one_step'}
# and here are several captions, of pictures with few cells, contiguous and of small numbers
NOT_HERE = {'bare squeeze', 'bare squeeze, last dimension', 'bare squeeze of the lengths', 'no gate for one caption',
            'only 25 pixels', 'weights cut off below', 'relu6', 'pixels viewed'}
MISTAKES = [m for m in mistakes() if m.name not in HARMLESS | NOT_HERE
            and not {method.rpartition('.')[2] for method, _ in m.changes} <= SHARED]
SLOWER = {'nn.LSTM one step at a time', 'explicit zero states'}  # right, but not replaced: another layer; F.dropout


def differences(source, folder, todo=None):
    models = load(source, folder)
    torch.manual_seed(0)
    sizes = dict(embed_dim=6, decoder_dim=8, vocab_size=17, encoder_dim=7)
    decoders = {2: models.DecoderWithRNN(**sizes), 5: models.DecoderWithAttention(**sizes, attention_dim=9)}
    batch = torch.randn(5, 3, 4, 7), torch.randint(1, 17, (5, 14)), torch.tensor([[4], [11], [2], [7], [11]])
    return [difference(decoder, *batch) for number, decoder in decoders.items()
            if todo is None or (todo <= 2) == (number == 2)]


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda m: f'{m.todo}: {m.name}')
def test_a_mistake_is_not_papered_over(mistake, tmp_path):
    assert all(differences(mistake.source(), tmp_path, mistake.todo))


@pytest.mark.parametrize('solution', correct_solutions(), ids=lambda s: s.name)
def test_right_solutions_are_sped_up(solution, tmp_path):
    found = differences(solution.source(), tmp_path)
    assert found.count(None) >= (1 if solution.name in SLOWER else 2), found
