"""The models of the lab: a CNN encoder that looks and two LSTM decoders that speak.

``Encoder`` is given. You write the rest, in the order of the TODOs; your code replaces the ``raise`` below each:

1. ``DecoderWithRNN``: its layers and one step (*Show and Tell*, Vinyals et al. 2015, arXiv 1411.4555)
2. ``DecoderWithRNN.forward``: a whole batch with teacher forcing
3. ``Attention``: where to look (*Show, Attend and Tell*, Xu et al. 2015, arXiv 1502.03044)
4. ``DecoderWithAttention``: its layers and one step
5. ``DecoderWithAttention.forward``: a whole batch with teacher forcing

Names of sizes in the shapes below:

=============  ==============================================================================
batch_size     captions in a batch (in beam search: beams)
num_pixels     cells of the encoder's grid: 14 * 14 = 196, for the shapes 8 * 8 = 64
encoder_dim    channels of the encoder's grid: 2048 of ResNet-101, 42 for the shapes
embed_dim      length of a word vector
decoder_dim    length of the LSTM's hidden state h and cell state c
attention_dim  length of the vectors in which pixels and hidden state are compared
vocab_size     number of words, special tokens included
=============  ==============================================================================
"""

import inspect

import torch
from torch import nn
from torch.nn import functional as F

from lab.data.encoders import Backbone, load_backbone


class Encoder(nn.Module):
    """CNN encoder: a picture becomes a grid of feature vectors (given, nothing to do here).

    *Show, Attend and Tell*, sec. 3.1.1, calls these vectors annotations a_1 ... a_L.

    :param encoder: a torchvision backbone by name ('resnet101', 'vgg16', ...), 'efficientnet_lite0',
        'shapes_cnn', or a module of your own from (n, 3, H, W) to (n, channels, h, w)
    :param encoded_image_size: side of the grid that ``AdaptiveAvgPool2d`` makes;
        None keeps the backbone's native grid (8 x 8 for ResNet-101 at 256 pixels)
    :param weights: 'DEFAULT' for the trained weights, None for random ones, or a file with a state dict
    :raises ValueError: unknown name, or weights that cannot be had
    """

    def __init__(self, encoder='resnet101', encoded_image_size=14, weights='DEFAULT'):
        super().__init__()
        backbone: Backbone = load_backbone(encoder, weights)
        self.stages, self.strides = backbone.stages, backbone.strides
        self.encoder_dim, self.input_size = backbone.channels, backbone.input_size
        self.register_buffer('mean', torch.tensor(backbone.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(backbone.std).view(1, 3, 1, 1), persistent=False)
        self.encoded_image_size = encoded_image_size
        self.fine_tune(False)

    def forward(self, images):
        """
        :param images: (batch_size, 3, H, W), uint8 pixels 0 to 255, or float already normalised
        :return: (batch_size, encoded_image_size, encoded_image_size, encoder_dim)
        """
        return self.resize(self.native_grid(images))

    def native_grid(self, images):
        """The backbone's own grid, before any pooling: (batch_size, h, w, encoder_dim)."""
        if images.dtype == torch.uint8:
            images = (images.float() / 255 - self.mean) / self.std
        if self.input_size and images.shape[-1] != self.input_size:
            images = F.interpolate(images, size=(self.input_size, self.input_size),
                                   mode='bilinear', antialias=True, align_corners=False)
        images = images.contiguous(memory_format=torch.channels_last)  # convolutions on a CPU are faster so
        return self.stages(images).permute(0, 2, 3, 1)

    def resize(self, grid):
        """Pool a native grid (batch_size, h, w, encoder_dim) to ``encoded_image_size``."""
        if self.encoded_image_size is None or grid.shape[1:3] == (self.encoded_image_size,) * 2:
            return grid
        return F.adaptive_avg_pool2d(grid.permute(0, 3, 1, 2), self.encoded_image_size).permute(0, 2, 3, 1)

    def fine_tune(self, fine_tune=True):
        """Open (True) or freeze (False) convolutional blocks 2 to 4, the stages of stride 8 and more.

        The first layers see edges and colours, which serve any picture; they always stay frozen.
        """
        for stage, stride in zip(self.stages, self.strides, strict=True):
            stage.requires_grad_(fine_tune and stride >= 8)
        return self.train(self.training)

    def train(self, mode=True):
        """Whatever is frozen stays in ``eval()``, batch norm always: its statistics must not drift."""
        super().train(mode)
        for stage in self.stages:
            if not any(p.requires_grad for p in stage.parameters()):
                stage.eval()
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self


def flatten_pixels(encoder_out):
    """(batch_size, h, w, encoder_dim) to (batch_size, num_pixels, encoder_dim); flat ones stay."""
    return encoder_out.flatten(1, -2)


class DecoderWithRNN(nn.Module):
    """Plain LSTM decoder: the picture is the first "word" that the LSTM reads (*Show and Tell*, sec. 3.1).

    x_{-1} = CNN(I);  x_t = W_e S_t;  p_{t+1} = softmax(LSTM(x_t))   (eqs. 10 to 12)

    I is the picture; it is read one step before step 0. S_t is word t as a vector with a single one, so W_e S_t is the
    row of the word in ``embedding``. The last layer, ``fc``, is part of what the paper calls LSTM here.

    :param embed_dim: length of a word vector
    :param decoder_dim: length of h and c
    :param vocab_size: number of words
    :param encoder_dim: channels of the encoder's grid
    :param dropout: probability of dropping an entry of h before the last layer
    """

    def __init__(self, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5):
        super().__init__()
        self.embed_dim, self.decoder_dim = embed_dim, decoder_dim
        self.vocab_size, self.encoder_dim = vocab_size, encoder_dim

        # TODO 1: DecoderWithRNN.__init__
        # Read first: notes/1_one_word_at_a_time.ipynb
        # Make the layers, under exactly these names:
        #   self.embedding    nn.Embedding    word index             -> embed_dim
        #   self.init         nn.Linear       encoder_dim            -> embed_dim
        #   self.bn           nn.BatchNorm1d  over embed_dim features, with its default settings
        #   self.decode_step  nn.LSTMCell     input embed_dim, state -> decoder_dim
        #   self.dropout      nn.Dropout      with probability dropout
        #   self.fc           nn.Linear       decoder_dim            -> vocab_size
        ### BEGIN SOLUTION
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.init = nn.Linear(encoder_dim, embed_dim)
        self.bn = nn.BatchNorm1d(embed_dim)
        self.decode_step = nn.LSTMCell(embed_dim, decoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        ### END SOLUTION

        init_word_layers(self)

    def init_hidden_state(self, encoder_out):
        """Let the LSTM read the picture.

        :param encoder_out: (batch_size, num_pixels, encoder_dim)
        :return: h, c after the picture, each (batch_size, decoder_dim)
        """
        # TODO 1: DecoderWithRNN.init_hidden_state
        #   1. The picture is the first "word": x_{-1} = bn(init(a)), where a is the mean of its pixels.
        #                                                                   (batch_size, embed_dim)
        #   2. The LSTM reads it from a state of zeros. nn.LSTMCell takes zeros when it is given no state.
        #   3. Return the state after it, h and c.                          (batch_size, decoder_dim) each
        # In training self.bn needs at least two captions: one alone has no variance.
        ### BEGIN SOLUTION
        image = self.bn(self.init(encoder_out.mean(dim=1)))
        h, c = self.decode_step(image)
        return h, c
        ### END SOLUTION

    def one_step(self, embeddings, h, c):
        """Read one word, score the next.

        :param embeddings: (batch_size, embed_dim) vectors of the words at this step
        :param h: (batch_size, decoder_dim) hidden state so far
        :param c: (batch_size, decoder_dim) cell state so far
        :return: predictions (batch_size, vocab_size) scores before softmax, new h, new c
        """
        # TODO 1: DecoderWithRNN.one_step
        # Predict first: a new decoder knows 1,000 words and scores them all alike. How large is the cross-entropy of a
        # word before any training?
        #   1. The LSTM reads the words: h_t, c_t = LSTM(x_t, h_{t-1}, c_{t-1}). nn.LSTMCell takes the state as one
        #      pair, h first.                                                (batch_size, decoder_dim) each
        #   2. The scores come from the new h: first dropout, then fc. They are no probabilities: the loss,
        #      F.cross_entropy, takes the softmax itself.                    (batch_size, vocab_size)
        #   3. Return the scores, h and c.
        ### BEGIN SOLUTION
        h, c = self.decode_step(embeddings, (h, c))
        predictions = self.fc(self.dropout(h))
        return predictions, h, c
        ### END SOLUTION

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        """Teacher forcing: at step t read the *true* word t, score word t + 1.

        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :param encoded_captions: (batch_size, max_caption_length) word indices: <start> ... <end> <pad> ...
        :param caption_lengths: (batch_size, 1) true lengths, <start> and <end> counted
        :return: predictions (batch_size, max(decode_lengths), vocab_size), zero past a caption's end;
            sorted captions; decode lengths (list, longest first); sort indices (batch_size,)
        """
        encoder_out = flatten_pixels(encoder_out)
        # TODO 2: DecoderWithRNN.forward
        # Read first: notes/2_sequence_to_sequence.ipynb
        # Predict first: a batch holds two captions, of 5 and of 9 words (<start> and <end> counted). How many rows does
        # one_step get at t = 3, and how many at t = 4? Which entries [i, t] of the predictions stay zero?
        #   The longest caption comes first: then the captions that still run are the first rows at every step. Pictures
        #     and captions take the same order. sort_ind[i] is the row that caption i of the sorted batch had before,
        #     so that the caller finds its picture again. caption_lengths is a column, (batch_size, 1): make it
        #     (batch_size,) before you sort.
        #   The decode length of a caption is its number of steps: one less than it has words, since <end> is predicted
        #     but never read.
        #   The state before step 0 comes from the picture: init_hidden_state.
        #   Step t reads word t of the n captions that still run, those with a decode length above t.
        #     one_step gets their word vectors (n, embed_dim) and their state, h and c (n, decoder_dim); it gives the
        #     scores of step t and the state for step t + 1.
        #   predictions holds the scores of caption i at step t in [i, t], and zeros past the caption's end. It lies
        #     on the device of encoder_out. Scores may be written into a tensor of zeros: gradients still flow.
        #                                                            (batch_size, max(decode_lengths), vocab_size)
        ### BEGIN SOLUTION
        caption_lengths, sort_ind = caption_lengths.flatten().sort(descending=True, stable=True)
        encoder_out, encoded_captions = encoder_out[sort_ind], encoded_captions[sort_ind]
        decode_lengths = (caption_lengths - 1).tolist()

        embeddings = self.embedding(encoded_captions)
        h, c = self.init_hidden_state(encoder_out)
        predictions = encoder_out.new_zeros(len(decode_lengths), max(decode_lengths), self.vocab_size)
        for t in range(max(decode_lengths)):
            n = sum(length > t for length in decode_lengths)
            predictions[:n, t], h, c = self.one_step(embeddings[:n, t], h[:n], c[:n])
        return predictions, encoded_captions, decode_lengths, sort_ind
        ### END SOLUTION

    # The interface of beam_search.py (given): every decoder has these two.

    def start(self, encoder_out):
        """:return: first state: tuple of (batch_size, ...) tensors; memory, the same for every word: none here"""
        return self.init_hidden_state(flatten_pixels(encoder_out)), ()

    def step(self, words, state, memory):
        """:return: scores of the next word (batch_size, vocab_size), new state, alpha (None: no attention)"""
        predictions, *state = self.one_step(self.embedding(words), *state)
        return predictions, tuple(state), None


class Attention(nn.Module):
    """Soft attention: where to look for the next word (*Show, Attend and Tell*, eqs. 4 and 5; eq. 13, sec. 4.2).

    e_i = att(relu(encoder_att(a_i) + decoder_att(h)));  alpha = softmax(e) over the pixels;
    z = sum over i of alpha_i a_i

    :param encoder_dim: channels of the encoder's grid
    :param decoder_dim: length of h
    :param attention_dim: length of the vectors in which the two are compared
    """

    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        # TODO 3: Attention.__init__
        # Read first: notes/3_attention.ipynb and notes/4_mathematics_of_attention.ipynb
        # Make the layers, under exactly these names:
        #   self.encoder_att  nn.Linear  encoder_dim   -> attention_dim    for the pixels
        #   self.decoder_att  nn.Linear  decoder_dim   -> attention_dim    for the hidden state
        #   self.att          nn.Linear  attention_dim -> 1                the score of a pixel
        ### BEGIN SOLUTION
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.att = nn.Linear(attention_dim, 1)
        ### END SOLUTION

    def forward(self, encoder_out, decoder_hidden, keys=None):
        """
        :param encoder_out: (batch_size, num_pixels, encoder_dim) the vectors a_i
        :param decoder_hidden: (batch_size, decoder_dim) hidden state h
        :param keys: (batch_size, num_pixels, attention_dim) encoder_att(encoder_out), if the caller has it
            already: it is the same for every word of a caption. Optional: you may ignore it and make them each time.
        :return: weighted encoding z (batch_size, encoder_dim), alpha (batch_size, num_pixels)
        """
        # TODO 3: Attention.forward
        # Predict first: all pixels of a picture get the same score. What are alpha and z? What changes when 5 is
        # added to every score?
        #   keys   encoder_att of each pixel                                (batch_size, num_pixels, attention_dim)
        #   query  decoder_att of the hidden state                          (batch_size, attention_dim)
        #   e      the score of each pixel, from its key and the query of its own picture, as in the equation of the
        #          class (att is the w of note 4)                           (batch_size, num_pixels)
        #   alpha  the weights: the scores of a picture through a softmax   (batch_size, num_pixels)
        #   z      the weighted sum of the pixels of a picture              (batch_size, encoder_dim)
        # Return z and alpha.
        ### BEGIN SOLUTION
        if keys is None:
            keys = self.encoder_att(encoder_out)
        query = self.decoder_att(decoder_hidden)
        e = self.att(F.relu(keys + query.unsqueeze(1))).squeeze(2)
        alpha = e.softmax(dim=1)
        z = torch.bmm(alpha.unsqueeze(1), encoder_out).squeeze(1)
        return z, alpha
        ### END SOLUTION


class DecoderWithAttention(nn.Module):
    """LSTM decoder with soft attention (*Show, Attend and Tell*, sec. 3.1.2 and 4.2).

    The gate of sec. 4.2.1 is one number per channel of z here; in the paper it is one for all of z.

    :param attention_dim: length of the vectors in which pixels and hidden state are compared
    :param embed_dim: length of a word vector
    :param decoder_dim: length of h and c
    :param vocab_size: number of words
    :param encoder_dim: channels of the encoder's grid
    :param dropout: probability of dropping an entry of h before the last layer
    """

    def __init__(self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5):
        super().__init__()
        self.attention_dim, self.embed_dim, self.decoder_dim = attention_dim, embed_dim, decoder_dim
        self.vocab_size, self.encoder_dim = vocab_size, encoder_dim

        # TODO 4: DecoderWithAttention.__init__
        # Make the layers, under exactly these names:
        #   self.attention    Attention      of TODO 3
        #   self.embedding    nn.Embedding   word index               -> embed_dim
        #   self.decode_step  nn.LSTMCell    input embed_dim + encoder_dim, state -> decoder_dim
        #   self.init_h       nn.Linear      encoder_dim              -> decoder_dim
        #   self.init_c       nn.Linear      encoder_dim              -> decoder_dim
        #   self.f_beta       nn.Linear      decoder_dim              -> encoder_dim    the gate
        #   self.dropout      nn.Dropout     with probability dropout
        #   self.fc           nn.Linear      decoder_dim              -> vocab_size
        ### BEGIN SOLUTION
        self.attention = Attention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(decoder_dim, vocab_size)
        ### END SOLUTION

        init_word_layers(self)

    def init_hidden_state(self, encoder_out):
        """First states from the mean picture (sec. 3.1.2; one Linear layer each here).

        :param encoder_out: (batch_size, num_pixels, encoder_dim)
        :return: h, c, each (batch_size, decoder_dim)
        """
        # TODO 4: DecoderWithAttention.init_hidden_state
        #   h and c before step 0: two Linear layers, init_h and init_c, each on the mean of the pixels.
        #                                                            (batch_size, decoder_dim) each
        ### BEGIN SOLUTION
        mean_encoder_out = encoder_out.mean(dim=1)
        return self.init_h(mean_encoder_out), self.init_c(mean_encoder_out)
        ### END SOLUTION

    def one_step(self, embeddings, encoder_out, h, c, keys=None):
        """Look, read one word, score the next.

        :param embeddings: (batch_size, embed_dim) vectors of the words at this step
        :param encoder_out: (batch_size, num_pixels, encoder_dim)
        :param h: (batch_size, decoder_dim) hidden state so far
        :param c: (batch_size, decoder_dim) cell state so far
        :param keys: for Attention.forward, which says what they are; you may take this parameter out
        :return: predictions (batch_size, vocab_size) scores before softmax, alpha (batch_size, num_pixels),
            new h, new c
        """
        # TODO 4: DecoderWithAttention.one_step
        # Predict first: the gate is shut, beta = 0 for every channel. What does the decoder still know of the picture
        # when it scores the next word? Would the alpha of this step be another one if the gate were open?
        #   1. The attention looks with the old h, since the new one needs z.   z (batch_size, encoder_dim)
        #   2. The gate: beta = sigmoid(f_beta(h_{t-1})), a number from 0 to 1 for each channel of z (sec. 4.2.1).
        #   3. h_t, c_t = LSTM([x_t; beta * z], h_{t-1}, c_{t-1}). [a; b] is b behind a, in one vector per caption.
        #   4. The scores come from the new h: first dropout, then fc.         (batch_size, vocab_size)
        #   5. Return the scores, alpha, h and c.
        ### BEGIN SOLUTION
        z, alpha = self.attention(encoder_out, h, keys)
        beta = torch.sigmoid(self.f_beta(h))
        h, c = self.decode_step(torch.cat([embeddings, beta * z], dim=1), (h, c))
        predictions = self.fc(self.dropout(h))
        return predictions, alpha, h, c
        ### END SOLUTION

    def forward(self, encoder_out, encoded_captions, caption_lengths):
        """Teacher forcing: at step t read the *true* word t, score word t + 1.

        :param encoder_out: (batch_size, h, w, encoder_dim) or (batch_size, num_pixels, encoder_dim)
        :param encoded_captions: (batch_size, max_caption_length) word indices: <start> ... <end> <pad> ...
        :param caption_lengths: (batch_size, 1) true lengths, <start> and <end> counted
        :return: predictions (batch_size, max(decode_lengths), vocab_size), zero past a caption's end;
            sorted captions; decode lengths (list, longest first);
            alphas (batch_size, max(decode_lengths), num_pixels), zero past a caption's end;
            sort indices (batch_size,)
        """
        encoder_out = flatten_pixels(encoder_out)
        # TODO 5: DecoderWithAttention.forward
        # Predict first: the doubly stochastic penalty (alpha_c, eq. 14 of the paper) wants the weights of each pixel to
        # sum to 1 over the words of a caption. Can a caption of 8 steps do so on 64 pixels?
        #   As TODO 2, with two differences:
        #   one_step also gets the pixels of the n captions that still run.        (n, num_pixels, encoder_dim)
        #   alphas holds the weights of caption i at step t in [i, t], and zeros past the caption's end.
        #                                                          (batch_size, max(decode_lengths), num_pixels)
        # Faster, and not asked for: the keys are the same at every step, so they can be made once, before the loop.
        ### BEGIN SOLUTION
        caption_lengths, sort_ind = caption_lengths.flatten().sort(descending=True, stable=True)
        encoder_out, encoded_captions = encoder_out[sort_ind], encoded_captions[sort_ind]
        decode_lengths = (caption_lengths - 1).tolist()

        embeddings = self.embedding(encoded_captions)
        h, c = self.init_hidden_state(encoder_out)
        keys = self.attention.encoder_att(encoder_out)
        predictions = encoder_out.new_zeros(len(decode_lengths), max(decode_lengths), self.vocab_size)
        alphas = encoder_out.new_zeros(len(decode_lengths), max(decode_lengths), encoder_out.size(1))
        for t in range(max(decode_lengths)):
            n = sum(length > t for length in decode_lengths)
            predictions[:n, t], alphas[:n, t], h, c = self.one_step(
                embeddings[:n, t], encoder_out[:n], h[:n], c[:n], keys[:n])
        return predictions, encoded_captions, decode_lengths, alphas, sort_ind
        ### END SOLUTION

    # The interface of beam_search.py (given): every decoder has these two.

    def start(self, encoder_out):
        """:return: first state and memory (the same for every word), tuples of (batch_size, ...) tensors"""
        encoder_out = flatten_pixels(encoder_out)
        memory = (encoder_out,)
        if 'keys' in inspect.signature(self.one_step).parameters:  # a one_step without keys is right as well
            memory += (self.attention.encoder_att(encoder_out),)
        return self.init_hidden_state(encoder_out), memory

    def step(self, words, state, memory):
        """:return: scores of the next word (batch_size, vocab_size), new state, alpha (batch_size, num_pixels)"""
        encoder_out, *keys = memory
        predictions, alpha, h, c = self.one_step(self.embedding(words), encoder_out, *state, *keys)
        return predictions, (h, c), alpha


def init_word_layers(decoder):
    """Small uniform weights for the two layers that touch words; they help early training."""
    nn.init.uniform_(decoder.embedding.weight, -0.1, 0.1)
    nn.init.uniform_(decoder.fc.weight, -0.1, 0.1)
    nn.init.zeros_(decoder.fc.bias)
