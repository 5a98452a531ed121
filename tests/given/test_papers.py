"""The equations that the checks of lab/more compare with. Formulas stand here, so no bonus task has this file."""

import math

import torch
from small import ATTENTION, LENGTHS, STATE, make, pictures


def test_softmax_over_the_queries_would_look_everywhere_alike():
    """There is one query, so that slip gives every cell the weight 1: the context is the sum of all cells."""
    attention = make('captionnet').attention
    cells = pictures().flatten(1, 2)
    h = torch.linspace(-1, 1, len(LENGTHS) * STATE, dtype=torch.float64).view(-1, STATE)
    scores = attention.query(h).unsqueeze(1) @ attention.key(cells).transpose(1, 2) / math.sqrt(ATTENTION)
    slip = scores.softmax(dim=1)
    assert (slip == 1).all()
    context, alpha = attention(cells, h)
    assert (alpha.sum(dim=1) - 1).abs().max() < 1e-12
    assert (context - cells.sum(dim=1)).abs().max() > 1
