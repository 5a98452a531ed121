"""Settings of the improvements, beside those in ``solver.py``. The files of ``lab/more`` name their papers."""

from dataclasses import dataclass, field
from typing import Annotated

from lab.more.self_critical import BASELINES
from lab.train.settings import Count, Flag, Options, Share, SharePerEpoch, Text, Weight

Baseline = Annotated[str, lambda v: v in BASELINES, ' or '.join(map(repr, BASELINES))]


@dataclass
class MoreSettings:
    # model
    decoder: Text | None = None         # class of your own in place of those in models.py: 'my_decoder.MyDecoder'
    decoder_options: Options = field(default_factory=dict)  # what its __init__ takes besides the sizes: dict(heads=4)
    embed_dropout: Share = 0.0          # on the word vectors, in training
    feature_dropout: Share = 0.0        # on whole channels of a picture's features, in training
    word_vectors: Text | None = None    # text file of GloVe, word2vec or fastText, embed_dim numbers a word
    tune_word_vectors: Flag = True      # train the word vectors on, or keep them as they are
    # training
    captions: Text | None = None        # file of lab/experiments/distillation.py: learn a teacher's captions
    weight_decay: Weight = 0.0          # of the decoder's weights (AdamW, Loshchilov 2019)
    label_smoothing: Share = 0.0        # share of a target that all words have in common (Szegedy et al. 2016, sec. 7)
    teacher_forcing: SharePerEpoch = 1.0  # probability of feeding the true word; (1.0, 0.7) falls over the epochs
    flip: Flag = False                  # mirror half the pictures, but not for captions that speak of left or right
    by_picture: Flag | None = None      # all captions of a picture in one batch; None: if the encoder is trained
    bf16: Flag | None = None            # matrix products in half precision; None: on a GPU that is made for it
    accumulate: Count = 1               # compute a step's gradient in so many parts, if memory is short
    self_critical: Baseline | None = None  # second phase on CIDEr-D, with the baseline 'greedy' or 'mean'
    samples: Count = 5                  # captions drawn per picture in that phase
    samples_dropout: Flag = False       # dropout in that phase: less is learned by heart
