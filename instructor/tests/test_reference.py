"""The reference's decoders beside their equations, which tests/given/test_papers.py has: layers, statistics, interface.

Weights and inputs are those of the checks (``tests/inputs.py``), in double precision. Each dimension has a size of its
own, so that none can be taken for another.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from instructor.expected import inputs
from instructor.models import Attention, DecoderWithAttention, DecoderWithRNN
from lab.decode.beam_search import beam_search

GIVEN = inputs.Inputs()
CLASS = {'plain': DecoderWithRNN, 'attention': Attention, 'attentive': DecoderWithAttention}
EMBED, DECODER, VOCAB = GIVEN.embed_dim, GIVEN.decoder_dim, GIVEN.vocab_size
BATCH, PIXELS, LENGTHS = GIVEN.batch, GIVEN.num_pixels, GIVEN.lengths
WORD_MAP = {'<pad>': 0, **{f'w{i}': i for i in range(1, 14)}, '<unk>': 14, '<start>': 15, '<end>': 16}
both = pytest.mark.parametrize('kind', ['plain', 'attentive'])


def make(kind, cls=None):
    module = (cls or CLASS[kind])(**GIVEN.sizes(kind, dropout=0.5)).double().eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    module.load_state_dict({name: torch.tensor(array) for name, array in GIVEN.weights(shapes).items()})
    return module


def pictures():
    return torch.tensor(GIVEN.pixels()).double()


def captions():
    return torch.tensor(GIVEN.captions()[0])


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


@pytest.mark.parametrize('training', [False, True])
def test_rnn_reads_the_picture_from_zero_states(training):
    """In training it normalises over the batch, and keeps statistics."""
    decoder = make('plain').train(training)
    mean, var = decoder.bn.running_mean.clone(), decoder.bn.running_var.clone()
    x = F.batch_norm(decoder.init(pictures().mean(dim=1)), mean, var, decoder.bn.weight, decoder.bn.bias, training)
    zeros = torch.zeros(BATCH, DECODER).double()
    torch.testing.assert_close(decoder.init_hidden_state(pictures()), decoder.decode_step(x, (zeros, zeros)))
    torch.testing.assert_close((decoder.bn.running_mean, decoder.bn.running_var), (mean, var))


def test_attention_formula():
    attention, (h, _) = make('attention'), states()
    keys, query = attention.encoder_att(pictures()), attention.decoder_att(h).unsqueeze(1)
    alpha = F.softmax(attention.att(F.relu(keys + query)), dim=1)
    expected = (alpha * pictures()).sum(dim=1), alpha.squeeze(2)
    torch.testing.assert_close(attention(pictures(), h), expected)
    torch.testing.assert_close(attention(pictures(), h, keys), expected)


@both
def test_one_step_scores_the_whole_state_when_not_in_training(kind):
    decoder, words = make(kind), torch.tensor(GIVEN.wave(BATCH, EMBED)).double()
    predictions, *_, h, _ = decoder.one_step(words, *[pictures()] * (kind == 'attentive'), *states())
    torch.testing.assert_close(predictions, decoder.fc(h))


class WithoutKeys(DecoderWithAttention):
    """What a student may write: the simplest ``one_step``."""

    def one_step(self, embeddings, encoder_out, h, c):
        return super().one_step(embeddings, encoder_out, h, c)


def test_one_step_without_keys_is_right_as_well():
    found, expected = [beam_search(make('attentive', cls), pictures(), WORD_MAP, max_len=6)
                       for cls in (WithoutKeys, DecoderWithAttention)]
    assert [f.words for f in found] == [e.words for e in expected]
    torch.testing.assert_close([f.alphas for f in found], [e.alphas for e in expected])


@both
def test_forward_gives_what_training_needs_and_leaves_its_inputs(kind):
    decoder = make(kind).float()
    given = pictures().float(), captions(), torch.tensor(LENGTHS).unsqueeze(1)
    before = [tensor.clone() for tensor in given]
    predictions, ordered, decode_lengths, *alphas, sort_ind = decoder(*given)
    assert predictions.shape == (BATCH, max(LENGTHS) - 1, VOCAB) and predictions.dtype == torch.float32
    assert [alpha.shape for alpha in alphas] == [(BATCH, max(LENGTHS) - 1, PIXELS)] * (kind == 'attentive')
    assert isinstance(decode_lengths, list) and decode_lengths == [10, 10, 6, 3, 1]
    assert sorted(sort_ind.tolist()) == list(range(BATCH))
    assert [LENGTHS[i] - 1 for i in sort_ind.tolist()] == decode_lengths
    assert ordered.dtype == torch.long and torch.equal(ordered, given[1][sort_ind])
    assert all(map(torch.equal, given, before))


@both
def test_grids_and_lists_of_pixels_lengths_in_rows_and_columns(kind):
    decoder, lengths = make(kind), torch.tensor(LENGTHS)
    expected = decoder(pictures(), captions(), lengths)
    grids = decoder(torch.tensor(GIVEN.pictures()).double(), captions(), lengths.unsqueeze(1))
    torch.testing.assert_close(grids, expected)
