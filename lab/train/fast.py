"""The decoders' formulas with fewer operations: ``solver.train`` runs them in place of a ``forward`` that agrees.

A loop over words as in ``models.py`` does much at every word that could be done once. A comment ``textbook:`` says at
each such place what the loop does; docs/speed.md has all of them in a table, with what each buys. :class:`Score` and
:class:`WeightGradient` have their gradients by hand, all else is plain autograd. Outputs and gradients are those of the
textbook loop within 1e-5. ``train`` uses this where :func:`difference` finds none, else your own ``forward``.
"""

import copy

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

TOLERANCE = 1e-4  # relative, in single precision


def fast_forward(decoder, encoder_out, encoded_captions, caption_lengths, image_of=None):
    """Teacher forcing as in ``DecoderWithRNN.forward`` and ``DecoderWithAttention.forward``.

    Under autocast pictures, keys and matrix products are in its dtype, states and sums in single precision.

    :param decoder: one of these two, with the layers that their TODOs ask for
    :param encoder_out: (pictures, h, w, encoder_dim) or (pictures, num_pixels, encoder_dim)
    :param image_of: (batch_size,) caption i is of picture ``image_of[i]``; None: of picture i. It and the lengths are
        best on the CPU: asking a GPU for them would make its queue run dry
    :return: what ``forward`` returns, but predictions as a ``PackedSequence``: true words only, (words, vocab_size)
    """
    pictures, device = encoder_out.flatten(1, -2), encoder_out.device
    decode_lengths, order = (caption_lengths.flatten().cpu() - 1).sort(descending=True)
    picture_of = order if image_of is None else image_of.cpu()[order]
    order = order.to(device, non_blocking=True)
    captions = encoded_captions[order]
    # the words that are read: those of step 0, longest caption first, then those of step 1, ...
    words, sizes, *_ = pack_padded_sequence(captions[:, :-1], decode_lengths, batch_first=True)
    embeddings = decoder.embedding(words)
    # textbook: the mean of each caption's picture; the mean pixel alone has the same mean as all of them
    mean = pictures.mean(dim=1, keepdim=True).index_select(0, picture_of.to(device, non_blocking=True))
    h, c = decoder.init_hidden_state(mean)
    h, c = (state.to(torch.promote_types(state.dtype, torch.float32)) for state in (h, c))
    if getattr(decoder, 'attention', None) is not None:
        states, alphas = attentive_states(decoder, pictures, picture_of, embeddings, h, c, sizes.tolist())
        alphas = pad_packed_sequence(PackedSequence(alphas, sizes), batch_first=True)[:1]
    else:
        # textbook: h, c = decode_step(word, (h, c)) at each step, *Show and Tell*, eqs. 11 and 12. This is what nn.LSTM
        # calls. Autocast on a GPU would take float16 here, of too small a range
        cell, alphas = decoder.decode_step, ()
        weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
        with torch.autocast('cuda', enabled=False):
            states, *_ = torch.lstm(embeddings.to(h.dtype), sizes, (h.unsqueeze(0), c.unsqueeze(0)), weights, True, 1,
                                    0.0, True, False)
    # textbook: at each step, into a tensor of zeros (batch_size, steps, vocab_size)
    predictions = PackedSequence(decoder.fc(decoder.dropout(states)), sizes)
    return predictions, captions, decode_lengths.tolist(), *alphas, order


def attentive_states(decoder, pictures, picture_of, embeddings, h, c, sizes):
    """The attentive decoder's loop over words (*Show, Attend and Tell*, eqs. 1 to 5, sec. 4.2).

    :param pictures: (pictures, num_pixels, encoder_dim)
    :param picture_of: (batch_size,) the picture of each caption, longest caption first, on the CPU
    :param embeddings: (words, embed_dim), step by step
    :param h, c: (batch_size, decoder_dim) first state
    :param sizes: list, how many captions run at each step: the first so many
    :return: hidden states (words, decoder_dim) and alphas (words, num_pixels), step by step
    """
    attention, cell, device = decoder.attention, decoder.decode_step, pictures.device
    # textbook: at each step
    keys = attention.encoder_att(pictures).index_select(0, picture_of.to(device))
    # textbook: at each step W_ih [word; beta z], which is W_word word + W_z (beta z)
    W_word, W_z = cell.weight_ih.split([embeddings.shape[1], pictures.shape[2]], dim=1)
    words_in = F.linear(embeddings, W_word)
    # textbook: decoder_att(h), f_beta(h) and W_hh h, each by itself
    parts = attention.decoder_att.weight, decoder.f_beta.weight, cell.weight_hh
    biases = torch.cat([attention.decoder_att.bias, decoder.f_beta.bias, cell.bias_ih + cell.bias_hh])
    half = keys.dtype  # of products, under autocast
    W_h, W_z, w = (weight.to(half) for weight in (torch.cat(parts), W_z, attention.att.weight.flatten()))
    # textbook: both weights' gradients are summed step by step
    all_h, all_z = [], []
    biases = WeightGradient.apply(biases.expand(len(words_in), -1), W_h, all_h).split(sizes)
    words_in = WeightGradient.apply(words_in, W_z, all_z).split(sizes)
    W_h, W_z = W_h.detach(), W_z.detach()
    saved = {}  # what the steps save for one another in backward
    pictures = pictures.to(half).index_select(0, picture_of.to(device))

    states, alphas = [], []
    for step, (n, bias, word) in enumerate(zip(sizes, biases, words_in, strict=True)):
        h, c = h[:n], c[:n]
        h_in = h.to(half)
        all_h.append(h_in.detach())
        query, gate, gates = (h_in @ W_h.T + bias).split(list(map(len, parts)), dim=1)
        # textbook: att(relu(keys + query))
        scores = Score.apply(keys, query.to(half), w, step, saved) + attention.att.bias
        alpha = scores.softmax(dim=1)                                                       # eq. 5
        z = torch.bmm(alpha.to(half).unsqueeze(1), pictures[:n]).squeeze(1)                 # eq. 13
        z = (gate.sigmoid() * z).to(half)                                                   # sec. 4.2.1
        all_z.append(z.detach())
        # textbook: cell([word; z], (h, c)), eqs. 1 to 3
        i, f, g, o = (gates + word + z @ W_z.T).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
        alphas.append(alpha)
    return torch.cat(states), torch.cat(alphas)


class WeightGradient(torch.autograd.Function):
    """The gradient of a weight W that is used at every step, as one product over all steps.

    Step t computes y_t = x_t W^T + rows_t. The gradients of rows_t and y_t are the same, dy_t, and that of W is the sum
    of dy_t^T x_t. The loop takes W detached.
    """

    @staticmethod
    def forward(ctx, rows, weight, inputs):
        """
        :param rows: (words, outputs), step by step
        :param weight: (outputs, inputs)
        :param inputs: a list, empty at first, to which each step adds its x_t (n, inputs)
        :return: ``rows``
        """
        ctx.inputs = inputs
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_rows):
        inputs = torch.cat(ctx.inputs)
        return d_rows, d_rows.to(inputs.dtype).T @ inputs, None


class Score(torch.autograd.Function):
    """e_i = w . relu(k_i + q) at one step, but for what all pixels share (*Show, Attend and Tell*, eq. 4).

    relu(k + q) = max(k, -q) + q, and softmax takes the last term out again. Nothing as large as the keys is kept: the
    gradient is made from keys and query, and the keys' own is summed in one tensor.
    """

    @staticmethod
    def forward(ctx, keys, query, w, step, saved):
        """
        :param keys: (batch_size, num_pixels, attention_dim)
        :param query: (n, attention_dim) of the first n; ``w``: (attention_dim,); all of one dtype
        :param step: from 0 on; backward goes from the last step to step 0, since each query depends on the one before
        :param saved: a dict of all steps, empty at first
        :return: (n, num_pixels)
        """
        ctx.save_for_backward(keys, query, w)
        ctx.step, ctx.saved = step, saved
        return torch.maximum(keys[:len(query)], -query.unsqueeze(1)) @ w

    @staticmethod
    @once_differentiable
    def backward(ctx, de):
        (keys, query, w), saved, n = ctx.saved_tensors, ctx.saved, len(de)
        if not saved:  # backward begins
            saved.update(d_keys=torch.zeros_like(keys), d_w=0)
        on = torch.gt(keys[:n], -query.unsqueeze(1), out=torch.empty_like(keys[:n]))  # relu's gradient, 0 or 1
        d_query = torch.bmm(de.unsqueeze(1), on).squeeze(1)  # the factor w comes last, here and for the keys
        saved['d_keys'][:n].addcmul_(on, de.unsqueeze(2))
        saved['d_w'] = saved['d_w'] + (d_query * query).sum(dim=0, dtype=torch.promote_types(w.dtype, torch.float32))
        if ctx.step > 0:
            return None, d_query * w, None, None, None
        d_keys = saved.pop('d_keys')
        d_w = saved.pop('d_w') + (d_keys * keys).sum(dim=(0, 1))  # relu(k + q) = on (k + q)
        return d_keys * w, d_query * w, d_w.to(w.dtype), None, None


def difference(decoder, encoder_out, encoded_captions, caption_lengths):
    """Why a decoder's own ``forward`` cannot be replaced by :func:`fast_forward`; None if the two agree.

    Both run on a copy, on a few captions, in training and in ``eval()``: all that they return must agree, and the
    gradients of every parameter. Dropout is random, and the two draw in another order; so every ``nn.Dropout`` of the
    copy computes x / 2 + 1 in training, which shows wherever it is used.
    """
    decoder = copy.deepcopy(decoder).requires_grad_()
    for module in decoder.modules():
        if isinstance(module, nn.Dropout):
            module.forward = lambda x, module=module: x / 2 + 1 if module.training else x
            module.p = 0.5  # who takes it from there draws
    batch = encoder_out.detach(), encoded_captions, caption_lengths
    try:
        # cuDNN's LSTM would round to TF32, the cells of a loop do not
        with (torch.enable_grad(), torch.random.fork_rng(),
              torch.backends.cudnn.flags(enabled=True, allow_tf32=False)):
            for training in (True, False):
                decoder.train(training)
                expected = _results(fast_forward, decoder, batch)
                results = _results(type(decoder).forward, decoder, batch)
                if results.keys() != expected.keys():
                    return 'its forward returns another number of results'
                for name, values in expected.items():
                    if not close(results[name], values):
                        return f'its {name}{"" if training else " in eval()"} are others'
    except Exception as error:  # another layer, another number of results, a method that stops, ...
        return f'{type(error).__name__}: {error}'.splitlines()[0]
    return None


def _results(forward, decoder, batch):
    """:return: dict: all that comes out, in the order of the batch, which stays as it is; and the gradients in one"""
    predictions, captions, lengths, *alphas, sort_ind = forward(decoder, *(tensor.clone() for tensor in batch))
    if isinstance(predictions, PackedSequence):
        predictions, _ = pad_packed_sequence(predictions, batch_first=True)

    def in_order(rows):  # captions of equal length may come in any
        return torch.zeros_like(rows).index_copy(0, sort_ind.to(rows.device), rows)

    names = ('predictions', 'alphas')[:1 + len(alphas)]
    outputs = {name: in_order(rows) for name, rows in zip(names, (predictions, *alphas), strict=True)}
    # any mixture of the entries will do, so long as no two are alike
    loss = sum((rows * torch.arange(rows.numel(), device=rows.device).sin().view(rows.shape)).sum()
               for rows in outputs.values())
    gradients = torch.autograd.grad(loss, list(decoder.parameters()), allow_unused=True, materialize_grads=True)
    return dict(**outputs, captions=in_order(captions).cpu(), lengths=torch.tensor(list(lengths)),
                gradients=torch.cat([gradient.flatten() for gradient in gradients]))


def close(one, other):
    """Equal in shape, and in value but for rounding."""
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    return bool((one - other).abs().max() <= TOLERANCE * other.abs().max())
