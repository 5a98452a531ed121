"""Decoders of lab/more, and pictures and captions for them, that are small and the same everywhere."""

import zlib

import torch
from torch.nn.utils.rnn import pad_packed_sequence

from lab.more.adaptive import DecoderWithAdaptiveAttention, DecoderWithSpatialAttention
from lab.more.bahdanau import DecoderWithBahdanauAttention
from lab.more.captionnet import CaptionNet
from lab.more.cells import DecoderWithCell

# every size is another, so that no two can be mixed up
PIXELS, ENCODER, ATTENTION, EMBED, STATE, WORDS = 6, 10, 4, 7, 9, 13
SIZES = dict(embed_dim=EMBED, decoder_dim=STATE, vocab_size=WORDS, encoder_dim=ENCODER)
LENGTHS = [5, 11, 2, 7, 9]
READ = 5  # the word that a step reads
KINDS = {
    'spatial': (DecoderWithSpatialAttention, dict(attention_dim=ATTENTION)),
    'adaptive': (DecoderWithAdaptiveAttention, dict(attention_dim=ATTENTION)),
    'bahdanau': (DecoderWithBahdanauAttention, dict(attention_dim=ATTENTION)),
    'captionnet': (CaptionNet, dict(attention_dim=ATTENTION)),
    'two_heads': (CaptionNet, dict(attention_dim=ATTENTION, heads=2)),
    'rnn': (DecoderWithCell, dict(cell='RNN')),
    'gru': (DecoderWithCell, dict(cell='GRU')),
    'lstm': (DecoderWithCell, dict(cell='LSTM')),
}


def make(kind, **options):
    """A decoder whose weights depend on their names and shapes alone, in double precision and ``eval()``."""
    cls, own = KINDS[kind]
    decoder = cls(**SIZES, **{**own, **options}).double().eval()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            n = torch.arange(parameter.numel())  # as good as random, and whole numbers are the same on every machine
            values = (37 * n * n + 91 * n + zlib.crc32(name.encode())) % 10007 / 10007
            parameter.copy_((values.double() * 1.2 - 0.6).view(parameter.shape))
    return decoder


def pictures():
    n = len(LENGTHS)
    return torch.linspace(0, 40, n * PIXELS * ENCODER, dtype=torch.float64).cos().view(n, 2, 3, ENCODER)


def captions():
    tokens = torch.arange(len(LENGTHS) * max(LENGTHS)).view(len(LENGTHS), -1) * 5 % (WORDS - 1) + 1
    return tokens.masked_fill(torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS).unsqueeze(1), 0)


def states():
    """Two states that are not zero, each (decoder_dim,)."""
    return [torch.linspace(-0.7, 1, STATE, dtype=torch.float64).mul(k).sin() for k in (2, 5)]


def run(decoder, encoder_out=None, tokens=None, **options):
    """Predictions and alphas, padded, in the order in which the captions went in."""
    tokens = captions() if tokens is None else tokens
    predictions, sorted_captions, lengths, *alphas, sort_ind = decoder(
        pictures() if encoder_out is None else encoder_out, tokens, torch.tensor(LENGTHS).unsqueeze(1), **options)
    assert lengths == sorted((n - 1 for n in LENGTHS), reverse=True)
    assert torch.equal(sorted_captions, tokens[sort_ind])
    back = sort_ind.argsort()
    return [values[back] for values in (pad_packed_sequence(predictions, batch_first=True)[0], *alphas)]
