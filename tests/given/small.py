"""Decoders of lab/more, and pictures and captions for them, that are small and the same everywhere."""

import math
import zlib

import torch

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


# self-critical training on two pictures: log p and rewards of three samples each, of the greedy captions, weights (of
# a part of a batch, so that they sum to less than 1)
DRAWN = [torch.tensor(values, dtype=torch.float64) for values in (
    [[-1.0, -2.0, -4.0], [-3.0, -0.5, -1.5]], [[1.0, 2.0, 6.0], [0.5, 0.0, 1.0]], [2.0, 0.25], [0.35, 0.15])]


def wave(*shape):
    """Numbers between -1 and 1, other ones for each shape."""
    n = torch.arange(math.prod(shape), dtype=torch.float64)
    return (n * (0.7 + 0.05 * sum(shape)) + len(shape)).sin().view(shape)


def looks():
    """What ``attend`` is given, of two captions at three steps."""
    return dict(V=wave(2, PIXELS, STATE), keys=wave(2, PIXELS, ATTENTION), h=wave(2, 3, STATE),
                x=wave(2, 3, 2 * EMBED), h_before=wave(2, 3, STATE).flip(2), tanh_m=wave(2, 3, STATE).flip(1) * 0.9)


def before_a_step():
    """What ``one_step`` of a decoder of *Knowing when to look* is given, of two captions."""
    h, m = states()
    return dict(embeddings=wave(2, EMBED), V=wave(2, PIXELS, STATE), keys=wave(2, PIXELS, ATTENTION),
                v_g=wave(2, EMBED).flip(1), h=torch.stack([h, m]), m=torch.stack([m, h]))


def some_weights(cells, h):
    """(n, num_pixels): other ones for another h."""
    return (torch.linspace(-2, 2, cells.shape[1], dtype=cells.dtype) * h.sum(dim=1, keepdim=True)).softmax(dim=1)


def some_attention(cells, h, keys=None):
    """Stands in for a decoder's attention, so that what is around it can be checked by itself: context, alpha."""
    alpha = some_weights(cells, h)
    return (alpha.unsqueeze(2) * cells).sum(dim=1), alpha
