"""The reference's decoders beside their equations, which tests/given/test_papers.py has: layers, training, no keys.

Weights and inputs are those of the checks (``tests/inputs.py``), in double precision. Each dimension has a size of its
own, so that none can be taken for another.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from instructor.expected import inputs
from instructor.models import DecoderWithAttention, DecoderWithRNN
from lab.decode.beam_search import beam_search

GIVEN = inputs.Inputs()
CLASS = {'plain': DecoderWithRNN, 'attentive': DecoderWithAttention}
EMBED, DECODER, VOCAB = GIVEN.embed_dim, GIVEN.decoder_dim, GIVEN.vocab_size
WORD_MAP = {'<pad>': 0, **{f'w{i}': i for i in range(1, 14)}, '<unk>': 14, '<start>': 15, '<end>': 16}
both = pytest.mark.parametrize('kind', ['plain', 'attentive'])


def make(kind, cls=None):
    module = (cls or CLASS[kind])(**GIVEN.sizes(kind, dropout=0.5)).double().eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    module.load_state_dict({name: torch.tensor(array) for name, array in GIVEN.weights(shapes).items()})
    return module


def pictures():
    return torch.tensor(GIVEN.pixels()).double()


def states():
    return [torch.tensor(state).double() for state in GIVEN.states().values()]


@both
def test_layers(kind):
    decoder = CLASS[kind](**GIVEN.sizes(kind, dropout=0.35))
    assert isinstance(decoder.dropout, nn.Dropout) and decoder.dropout.p == 0.35
    assert decoder.embedding.weight.shape == (VOCAB, EMBED) and decoder.fc.weight.shape == (VOCAB, DECODER)
    assert decoder.embedding.weight.abs().max() <= 0.1 and decoder.fc.weight.abs().max() <= 0.1
    assert (decoder.fc.bias == 0).all()
    assert all(layer.bias is not None for layer in decoder.modules() if isinstance(layer, nn.Linear))


def test_in_training_rnn_normalises_over_the_batch_and_keeps_statistics():
    decoder = make('plain').train()
    mean, var = decoder.bn.running_mean.clone(), decoder.bn.running_var.clone()
    x = F.batch_norm(decoder.init(pictures().mean(dim=1)), mean, var, decoder.bn.weight, decoder.bn.bias, True)
    zeros = torch.zeros(GIVEN.batch, DECODER).double()
    torch.testing.assert_close(decoder.init_hidden_state(pictures()), decoder.decode_step(x, (zeros, zeros)))
    torch.testing.assert_close((decoder.bn.running_mean, decoder.bn.running_var), (mean, var))


class WithoutKeys(DecoderWithAttention):
    """What a student may write: the simplest ``one_step``."""

    def one_step(self, embeddings, encoder_out, h, c):
        return super().one_step(embeddings, encoder_out, h, c)


def test_one_step_without_keys_is_right_as_well():
    found, expected = [beam_search(make('attentive', cls), pictures(), WORD_MAP, max_len=6)
                       for cls in (WithoutKeys, DecoderWithAttention)]
    assert [f.words for f in found] == [e.words for e in expected]
    torch.testing.assert_close([f.alphas for f in found], [e.alphas for e in expected])
