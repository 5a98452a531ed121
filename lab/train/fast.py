"""The decoders' formulas with fewer operations: ``solver.train`` runs them in place of a ``forward`` that agrees.

A loop over words as in ``models.py`` repeats much that is the same for all of them. Here

- the keys ``encoder_att(a_i)`` are computed once per picture, not once per word;
- one matrix product reads a picture for all its captions in the batch;
- the words' part of the LSTM's input, and the vocabulary layer, are one matrix product each for all words of the batch,
  over true words only: nothing is computed, kept or cleared for padding;
- the attentive decoder's three products with h (query, gate, LSTM) are one; the plain decoder's LSTM is one call on a
  GPU;
- what all pixels share is left out of their scores, since softmax takes it out again;
- the gradient is written out (backpropagation through time), so that each weight's gradient is one matrix product over
  all words instead of a sum of one per word;
- on a CPU, in single precision, the products are oneDNN's, and the gradient of the loss is written over what the loss
  itself needs.

The results are those of the textbook loop (``tests/given/test_lean.py`` in the whole repository: outputs and gradients
within 1e-5). ``train`` uses this only for a decoder to which :func:`objection` has none, and your own ``forward`` for
any other.
"""

import copy
import functools
import random
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

TOLERANCE = 1e-4  # relative, in single precision


@functools.cache  # at the first product, not on import: what is to be forked must not have run threads
def find_kernel():
    """oneDNN's x W^T + b, which torch has beside MKL's; None where it is missing, or does not do what it did.

    Torch itself takes MKL's for single precision, which on processors of AMD needs up to twice the time.
    """
    try:
        kernel = torch.ops.mkldnn._linear_pointwise
        x, weight, bias = torch.arange(6.).view(2, 3), torch.arange(12.).view(4, 3), torch.arange(4.)
        same = torch.allclose(kernel(x, weight, bias, 'none', [], ''), x @ weight.T + bias)
    except (AttributeError, RuntimeError):  # NotImplementedError is one of the latter
        return None
    return kernel if same else None


def product(x, weight, bias=None):
    """x W^T + b, without a gradient.

    :param x: (n, inputs)
    :param weight: (outputs, inputs), contiguous or the transpose of what is: for a slice oneDNN has no fast way
    :param bias: (outputs,) or None
    :return: (n, outputs)
    """
    fast = (x.device.type == 'cpu' and x.dtype == weight.dtype == torch.float32
            and (weight.is_contiguous() or weight.T.is_contiguous()))
    kernel = find_kernel() if fast else None
    return kernel(x, weight, bias, 'none', [], '') if kernel else nn.functional.linear(x, weight, bias)


class Linear(torch.autograd.Function):
    """:func:`product` with its gradient: of x it is dy W, of W dy^T x, of b the sum of dy."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        return (product(dy, weight.T) if of_x else None, dy.T @ x if of_weight else None,
                dy.sum(dim=0) if of_bias else None)


def linear(x, weight, bias=None):
    """``nn.functional.linear`` by oneDNN, see :func:`product`.

    :param x: (..., inputs)
    :param weight: (outputs, inputs)
    :return: (..., outputs)
    """
    if torch.is_autocast_enabled(x.device.type):
        return nn.functional.linear(x, weight, bias)
    return Linear.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


class CrossEntropy(torch.autograd.Function):
    """The sum over words of -log p(y), p = softmax(scores); its gradient p - y is written over log p.

    With label smoothing epsilon y is 1 - epsilon for the true word, and epsilon / V more for each of the V
    (Szegedy et al. 2016, [1512.00567](https://arxiv.org/abs/1512.00567), sec. 7).
    """

    @staticmethod
    def forward(ctx, scores, targets, epsilon):
        log_p = scores.log_softmax(dim=1)
        ctx.save_for_backward(log_p, targets)  # torch itself stops a second backward, which would find p there
        ctx.epsilon = epsilon
        loss = -(1 - epsilon) * log_p.gather(1, targets.unsqueeze(1)).sum()
        return loss - epsilon * log_p.mean(dim=1).sum() if epsilon else loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_loss):
        log_p, targets = ctx.saved_tensors
        d_scores = log_p.exp_()
        if ctx.epsilon:
            d_scores -= ctx.epsilon / d_scores.shape[1]
        d_scores[torch.arange(len(targets), device=targets.device), targets] -= 1 - ctx.epsilon
        return d_scores.mul_(d_loss), None, None


def cross_entropy(scores, targets, label_smoothing=0.0):
    """``nn.functional.cross_entropy(..., reduction='sum')`` with less to write and to clear.

    :param scores: (words, vocab_size)
    :param targets: (words,)
    :return: 0-dim tensor
    :raises ValueError: another number of rows than of targets
    """
    if len(scores) != len(targets):
        raise ValueError(f'Expected input batch_size ({len(scores)}) to match target batch_size ({len(targets)}).')
    return CrossEntropy.apply(scores, targets, label_smoothing)


def lean_forward(decoder, encoder_out, encoded_captions, caption_lengths, image_of=None):
    """Teacher forcing as in ``DecoderWithRNN.forward`` and ``DecoderWithAttention.forward``.

    Under autocast pictures, keys and matrix products are in its dtype, states and sums in single precision.

    :param decoder: one of these two, with the layers that their TODOs ask for
    :param encoder_out: (pictures, h, w, encoder_dim) or (pictures, num_pixels, encoder_dim)
    :param image_of: (batch_size,) caption i is of picture ``image_of[i]``; None: of picture i. It and the lengths are
        best on the CPU: asking a GPU for them would make its queue run dry
    :return: what ``forward`` returns, but predictions as a ``PackedSequence``: true words only, (words, vocab_size)
    """
    pictures = encoder_out.flatten(1, -2)
    steps, longest_first = (caption_lengths.flatten().cpu() - 1).sort(descending=True)
    picture_of = longest_first if image_of is None else image_of.cpu()[longest_first]
    together = Together(picture_of, len(pictures), pictures.device)
    order, picture_of = (index.to(pictures.device, non_blocking=True) for index in (longest_first, picture_of))
    encoded_captions = encoded_captions[order]
    words, sizes, *_ = pack_padded_sequence(encoded_captions[:, :-1], steps, batch_first=True)
    cell = decoder.decode_step

    # the mean pixel alone has the same mean as all of them
    states = decoder.init_hidden_state(pictures.mean(dim=1, keepdim=True).index_select(0, picture_of))
    h, c = (state.to(torch.promote_types(state.dtype, torch.float32)) for state in states)
    embeddings = decoder.embedding(words)
    if not hasattr(decoder, 'attention'):
        states, alphas = plain_states(cell, embeddings, h, c, sizes, one_call=pictures.device.type != 'cpu'), ()
    else:
        attention, split = decoder.attention, embeddings.shape[1]
        from_word, from_z = (weight.contiguous() for weight in cell.weight_ih.tensor_split([split], dim=1))
        words_in = linear(embeddings, from_word, cell.bias_ih + cell.bias_hh)
        from_h = torch.cat([attention.decoder_att.weight, decoder.f_beta.weight, cell.weight_hh])
        bias = torch.cat([attention.decoder_att.bias, decoder.f_beta.bias])
        # once per picture, whatever the number of its captions
        keys = linear(pictures, attention.encoder_att.weight, attention.encoder_att.bias)
        low = keys.dtype
        with torch.autocast(pictures.device.type, enabled=False):
            pictures, keys = pictures.to(low), keys.index_select(0, picture_of)
            if not together.shared:
                pictures = pictures.index_select(0, picture_of)
            states, alpha = AttentiveLSTM.apply(
                pictures, keys, words_in.to(h.dtype), h, c, from_h.to(low), bias,
                attention.att.weight.flatten().to(low), from_z.to(low), sizes.tolist(), together)
        # the bias of att shifts all scores alike, so softmax takes it out again: its gradient is zero
        alpha = alpha + 0 * attention.att.bias
        alphas = (pad_packed_sequence(PackedSequence(alpha, sizes), batch_first=True)[0],)
    predictions = PackedSequence(linear(decoder.dropout(states), decoder.fc.weight, decoder.fc.bias), sizes)
    return predictions, encoded_captions, steps.tolist(), *alphas, order


def plain_states(cell, embeddings, h, c, sizes, one_call):
    """The plain decoder's LSTM over packed words.

    :param embeddings: (words, embed_dim); the others as of :func:`packed_lstm`
    :param one_call: of torch's own, as on a GPU. On a CPU that goes word by word, with a product and a sum at each for
        every weight's gradient, so that :func:`packed_lstm` is faster
    :return: hidden states (words, decoder_dim), packed
    """
    if not one_call:
        return packed_lstm(cell, embeddings, h, c, sizes)[0]
    weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    with torch.autocast(h.device.type, enabled=False):  # it would take float16, which has too small a range
        states, *_ = torch.lstm(embeddings.to(h.dtype), sizes, (h.unsqueeze(0), c.unsqueeze(0)), weights, True, 1, 0.0,
                                True, False)  # what nn.LSTM calls
    return states


def packed_lstm(cell, inputs, h, c, sizes):
    """An LSTM over packed words, in one call, with what ``torch.lstm`` keeps to itself: the cell state at each word.

    Under autocast matrix products are in its dtype, states in single precision.

    :param cell: ``nn.LSTMCell``
    :param inputs: (words, input_size), packed; ``sizes``: (steps,) how many captions run at each step, on the CPU
    :param h, c: (batch, decoder_dim) first state
    :return: h and tanh(c) at each word (words, decoder_dim), packed
    """
    words_in = linear(inputs, cell.weight_ih, cell.bias_ih + cell.bias_hh)
    low = words_in.dtype
    with torch.autocast(h.device.type, enabled=False):
        return PackedLSTM.apply(words_in.to(h.dtype), h, c, cell.weight_hh.to(low), sizes.tolist())


def lstm_cell(gates, c):
    """c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c)   (*Show, Attend and Tell*, eqs. 1 to 3)

    :param gates: (n, 4 decoder_dim) i, f, g, o before their sigmoid or tanh; after it when this returns
    :return: h, c, tanh(c)
    """
    d = c.shape[1]
    gates[:, :2 * d].sigmoid_()
    gates[:, 2 * d:3 * d].tanh_()
    gates[:, 3 * d:].sigmoid_()
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.addcmul(f * c, i, g)
    tanh_c = c.tanh()
    return o * tanh_c, c, tanh_c


def lstm_cell_backward(dh, dc, gates, c_before, tanh_c, out):
    """
    :param dh, dc: gradients of the new h and c; ``dc`` becomes that of the old c
    :param gates, c_before, tanh_c: as :func:`lstm_cell` had and left them
    :param out: (n, 4 decoder_dim) where the gradient of the gates before sigmoid and tanh goes
    :return: ``out``
    """
    d = dc.shape[1]
    i, f, g, o = gates.chunk(4, dim=1)
    dc += dh * o * (1 - tanh_c ** 2)
    out[:, :d] = dc * g * i * (1 - i)
    out[:, d:2 * d] = dc * c_before * f * (1 - f)
    out[:, 2 * d:3 * d] = dc * i * (1 - g ** 2)
    out[:, 3 * d:] = dh * tanh_c * o * (1 - o)
    dc *= f
    return out


class PackedLSTM(torch.autograd.Function):
    """All steps of an LSTM whose inputs are known, from the first state to the last (*Show and Tell*, sec. 3.1).

    Per step, with the rows of the captions still running:

        i, f, g, o = words_in + W_hh h
        c = sigmoid(f) c + sigmoid(i) tanh(g),  h = sigmoid(o) tanh(c)
    """

    @staticmethod
    def forward(ctx, words_in, h, c, W_hh, sizes):
        """
        :param words_in: (words, 4 decoder_dim) the words' part of the LSTM's input, with both biases, packed
        :param h, c: (batch, decoder_dim) first state
        :param W_hh: (4 decoder_dim, decoder_dim), in the dtype that products are to have
        :param sizes: list, how many captions run at each step
        :return: h and tanh(c) (words, decoder_dim), packed
        """
        low, high = W_hh.dtype, h.dtype
        before, cell_before, tanh_c, states = (h.new_empty(len(words_in), h.shape[1]) for _ in range(4))
        gates = torch.empty_like(words_in)
        start = 0
        for n in sizes:
            rows = slice(start, start + n)
            start += n
            h, c = h[:n], c[:n]
            before[rows], cell_before[rows] = h, c
            torch.add(product(h.to(low), W_hh).to(high), words_in[rows], out=gates[rows])
            h, c, tanh_c[rows] = lstm_cell(gates[rows], c)
            states[rows] = h
        ctx.save_for_backward(W_hh, before, gates, cell_before, tanh_c)
        ctx.sizes = sizes
        ctx.set_materialize_grads(False)
        return states, tanh_c

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_states, d_tanh_c):
        W_hh, before, gates, cell_before, tanh_c = ctx.saved_tensors
        low, sizes = W_hh.dtype, ctx.sizes
        d_words = torch.empty_like(gates)
        d_h, d_c = before.new_zeros(2, sizes[0], before.shape[1])
        end = len(before)
        for n in reversed(sizes):
            rows = slice(end - n, end)
            end -= n
            if d_states is not None:
                d_h[:n] += d_states[rows]
            if d_tanh_c is not None:
                d_c[:n] += d_tanh_c[rows] * (1 - tanh_c[rows] ** 2)
            d_gates = lstm_cell_backward(d_h[:n], d_c[:n], gates[rows], cell_before[rows], tanh_c[rows], d_words[rows])
            d_h[:n] = product(d_gates.to(low), W_hh.T)  # into the state before
        return d_words, d_h, d_c, d_words.to(low).T @ before.to(low), None


class Together:
    """The rows of a picture's captions side by side, so that one matrix product reads the picture for all of them.

    Captions are in the order of falling length: at each step the first n of them run.

    :param picture_of: (batch,) the picture of each caption, on the CPU
    :param pictures: how many there are
    :param device: of the rows
    :ivar shared: whether captions share pictures; if not, each caption has its own, in the captions' order
    :ivar most: captions of the picture that has most
    :ivar place: (batch,) a caption's row where each picture has ``most`` of them
    """

    def __init__(self, picture_of, pictures, device='cpu'):
        captions_of, by_picture = picture_of.bincount(), picture_of.argsort(stable=True)
        first = captions_of.cumsum(0) - captions_of
        self.pictures, self.most = pictures, int(captions_of.max())
        # with much empty room a picture for each caption costs less
        self.shared = self.most > 1 and self.most * pictures <= 1.5 * len(picture_of)
        number = torch.empty_like(picture_of)  # of a caption among its picture's
        number[by_picture] = torch.arange(len(picture_of)) - first[picture_of[by_picture]]
        self.place = (picture_of * self.most + number).to(device, non_blocking=True)

    def side_by_side(self, rows):
        """
        :param rows: (n, ...) of the captions that run
        :return: (pictures, most, ...), zeros where none runs; (n, 1, ...) where none share a picture
        """
        if not self.shared:
            return rows.unsqueeze(1)
        room = rows.new_zeros(self.pictures * self.most, *rows.shape[1:])
        return room.index_copy_(0, self.place[:len(rows)], rows).unflatten(0, (self.pictures, self.most))

    def in_order(self, groups, n):
        """From what :meth:`side_by_side` returns back to (n, ...)."""
        return groups.flatten(0, 1).index_select(0, self.place[:n]) if self.shared else groups.squeeze(1)

    def running(self, pictures, n):
        """The pictures that :meth:`side_by_side` has rows for."""
        return pictures if self.shared else pictures[:n]


class AttentiveLSTM(torch.autograd.Function):
    """All steps of the attentive decoder, from the first state to the last hidden state (*Show, Attend and Tell*).

    Per step, with the rows of the captions still running:

        e = w . relu(keys + W_q h + b_q),  alpha = softmax(e),  z = sum_i alpha_i a_i      (eqs. 4, 5, sec. 4.2)
        beta = sigmoid(W_b h + b_b)                                                        (sec. 4.2.1)
        i, f, g, o = words_in + W_hh h + W_z (beta z)                                      (eq. 1)
        c = sigmoid(f) c + sigmoid(i) tanh(g),  h = sigmoid(o) tanh(c)                     (eqs. 2, 3)
    """

    @staticmethod
    def forward(ctx, pictures, keys, words_in, h, c, from_h, bias, w, W_z, sizes, together):
        """
        :param pictures: (pictures, pixels, encoder_dim) the a_i; where captions do not share them (``together.shared``)
            one for each caption, in the captions' order. ``keys``: (batch, pixels, attention_dim) of each caption
        :param words_in: (words, 4 decoder_dim) the words' part of the LSTM's input, with both biases, packed
        :param h, c: (batch, decoder_dim) first state
        :param from_h: (attention_dim + encoder_dim + 4 decoder_dim, decoder_dim) W_q, W_b and W_hh in one;
            ``bias``: (attention_dim + encoder_dim,) b_q and b_b
        :param w: (attention_dim,); ``W_z``: (4 decoder_dim, encoder_dim)
        :param sizes: list, how many captions run at each step
        :param together: :class:`Together`
        :return: hidden states (words, decoder_dim) and alpha (words, pixels), both packed
        """
        (_, pixels, e), a, d = pictures.shape, keys.shape[2], h.shape[1]
        total, low, high = len(words_in), keys.dtype, h.dtype
        new = h.new_empty
        saved = dict(before=new(total, d), query=new(total, a, dtype=low), alpha=new(total, pixels), z=new(total, e),
                     beta=new(total, e), gates=new(total, 4 * d), cell_before=new(total, d), tanh_c=new(total, d))
        states = new(total, d)
        scratch = torch.empty_like(keys)
        start = 0
        for n in sizes:
            rows = slice(start, start + n)
            start += n
            h, c = h[:n], c[:n]
            saved['before'][rows], saved['cell_before'][rows] = h, c
            with_h = product(h.to(low), from_h).to(high)
            query = saved['query'][rows]
            query.copy_(with_h[:, :a] + bias[:a])
            # relu(k + q) = max(k, -q) + q, and what all pixels share softmax takes out
            e_i = torch.maximum(keys[:n], -query.unsqueeze(1), out=scratch[:n]) @ w
            alpha = e_i.to(high).softmax(dim=1)
            z = together.side_by_side(alpha.to(low)) @ together.running(pictures, n)
            z = together.in_order(z, n).to(high)
            beta = (with_h[:, a:a + e] + bias[a:]).sigmoid_()
            saved['alpha'][rows], saved['z'][rows], saved['beta'][rows] = alpha, z, beta
            gates = product((z * beta).to(low), W_z).to(high).add_(with_h[:, a + e:]).add_(words_in[rows])
            h, c, saved['tanh_c'][rows] = lstm_cell(gates, c)
            saved['gates'][rows], states[rows] = gates, h
        ctx.save_for_backward(pictures, keys, from_h, w, W_z, *saved.values())
        ctx.sizes, ctx.together = sizes, together
        return states, saved['alpha'].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_states, d_alpha):
        (pictures, keys, from_h, w, W_z, before, query, alpha, z, beta, gates, cell_before,
         tanh_c) = ctx.saved_tensors
        sizes, together, (batch, _, a) = ctx.sizes, ctx.together, keys.shape
        e, d = pictures.shape[2], before.shape[1]
        low, high = keys.dtype, before.dtype
        d_product = torch.empty(len(before), a + e + 4 * d, dtype=before.dtype, device=before.device)
        d_keys, scratch = torch.zeros_like(keys), torch.empty_like(keys)
        d_pictures = torch.zeros_like(pictures) if ctx.needs_input_grad[0] else None
        d_w = torch.zeros_like(w, dtype=high)
        d_h, d_c = before.new_zeros(batch, d), before.new_zeros(batch, d)
        end = len(before)
        for n in reversed(sizes):
            rows = slice(end - n, end)
            end -= n
            # the LSTM
            dh, dc = d_h[:n], d_c[:n]
            dh += d_states[rows]
            d_gates = lstm_cell_backward(dh, dc, gates[rows], cell_before[rows], tanh_c[rows], d_product[rows, a + e:])
            # the gate and z
            gated = product(d_gates.to(low), W_z.T).to(high)
            b = beta[rows]
            d_product[rows, a:a + e] = gated * z[rows] * b * (1 - b)
            dz = together.side_by_side(gated.mul_(b).to(low))
            if d_pictures is not None:
                weights = together.side_by_side(alpha[rows].to(low)).transpose(1, 2)
                together.running(d_pictures, n).baddbmm_(weights, dz)
            # alpha, the scores, the query and the keys
            da = dz @ together.running(pictures, n).transpose(1, 2)
            da = together.in_order(da, n).to(high).add_(d_alpha[rows])
            al = alpha[rows]
            de = (al * (da - (al * da).sum(dim=1, keepdim=True))).to(low)
            on = torch.gt(keys[:n], -query[rows].unsqueeze(1), out=scratch[:n])
            d_query = torch.bmm(de.unsqueeze(1), on).squeeze(1)
            d_product[rows, :a] = d_query * w
            d_w += (d_query * query[rows]).to(high).sum(dim=0)
            d_keys[:n].addcmul_(on, de.unsqueeze(2))
            # into the state before
            dh.copy_(product(d_product[rows].to(low), from_h.T))
        d_w += (d_keys * keys).to(high).sum(dim=(0, 1))  # relu(k + q) = on (k + q)
        d_keys *= w
        d_bias = d_product[:, :a + e].sum(dim=0)
        d_words = d_product[:, a + e:]
        d_from_h = d_product.to(low).T @ before.to(low)
        d_W_z = product(d_words.to(low).T, (beta * z).to(low).T)
        return d_pictures, d_keys, d_words, d_h, d_c, d_from_h, d_bias, d_w.to(low), d_W_z, None, None


def objection(decoder, encoder_out, encoded_captions, caption_lengths):
    """Why a decoder's own ``forward`` cannot be replaced by :func:`lean_forward`; None if the two agree.

    Compared on a copy, on a few captions: all that ``forward`` returns, the gradients of every parameter, and what goes
    into ``decoder.dropout``; with everything dropped, and in ``eval()``, once more what it returns. What is random
    besides is not replaced. Random generators stay as they are.
    """
    devices = [encoder_out.device] if encoder_out.is_cuda else []
    # cuDNN's LSTM would round to TF32, the cells of a loop do not
    precise = torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if devices else nullcontext()
    try:
        with torch.random.fork_rng(devices), _others_kept(), torch.enable_grad(), precise:
            return _difference(copy.deepcopy(decoder).train(), encoder_out.detach(), encoded_captions, caption_lengths)
    except Exception as error:  # layers of other names or kinds, another number of results, ...
        return f'{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}'


def _run(forward, decoder, batch):
    """:return: predictions and alphas, captions and lengths, all in the order of the batch, which stays as it is"""
    predictions, captions, lengths, *alphas, sort_ind = forward(decoder, *(tensor.clone() for tensor in batch))
    if torch.is_tensor(predictions):
        predictions = pack_padded_sequence(predictions, lengths, batch_first=True)
    back = sort_ind.argsort()  # captions of equal length may come in any order
    predictions, _ = pad_packed_sequence(predictions, batch_first=True)
    return [values[back] for values in (predictions, *alphas)], [captions[back], torch.tensor(list(lengths))]


@contextmanager
def _others_kept():
    """Python's and NumPy's random generators are afterwards as they were; torch's own way minds torch's only."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _random_states(device):
    torch_states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == 'cuda' else [])]
    return [random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:],
            *(state.tolist() for state in torch_states)]


def _difference(decoder, *batch):
    for module in decoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    dropped, found = ([], []), []
    for forward, inputs in zip((type(decoder).forward, lean_forward), dropped, strict=True):
        handle = decoder.dropout.register_forward_pre_hook(lambda _, given, inputs=inputs: inputs.append(given[0]))
        states = _random_states(batch[0].device)
        try:
            outputs, whole = _run(forward, decoder, batch)
        except (TypeError, AttributeError):
            if forward is lean_forward:
                return 'its layers are not those that the TODOs ask for'
            raise
        handle.remove()
        if states != _random_states(batch[0].device):
            return 'it draws random numbers'
        # any mixture of the entries will do, so long as no two are alike
        loss = sum((values * torch.sin(torch.arange(values.numel(), device=values.device)).view(values.shape)).sum()
                   for values in outputs)
        trained = {name: p for name, p in decoder.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        found.append((outputs, whole, gradients))
    (outputs, whole, gradients), (lean_outputs, lean_whole, lean_gradients) = found

    if len(outputs) != len(lean_outputs):
        return 'its forward returns another number of results'
    for name, one, other in zip(('predictions', 'alphas'), outputs, lean_outputs, strict=False):
        if not close(one, other):
            return f'its {name} are others'
    if not all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(whole, lean_whole, strict=True)):
        return 'its captions or lengths are others'
    scale = max(gradient.abs().max() for gradient in lean_gradients if gradient is not None)
    for name, one, other in zip(trained, gradients, lean_gradients, strict=True):
        if (one is None) != (other is None) or one is not None and not close(one, other, scale):
            return f'its gradient of {name} is another'
    dropped = [row_sums(given) for given in dropped]
    if not close(*dropped):
        return 'its dropout is not on h before fc, once per word'
    # any other dropout would show in what comes out when everything is dropped
    for module in decoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 1.0
    states = []
    handle = decoder.dropout.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    with torch.no_grad():
        _run(type(decoder).forward, decoder, batch)
        handle.remove()
        if not close(row_sums(states), dropped[1]):
            return 'it has dropout in other places as well'
        if decoder.fc.bias is not None:
            decoder.fc.bias.normal_()  # so that there is something to drop behind fc
        for training, otherwise in ((True, 'it has dropout in other places as well'),
                                    (False, 'in eval() it does something else')):
            decoder.train(training)
            (outputs, _), (lean_outputs, _) = (_run(forward, decoder, batch)
                                               for forward in (type(decoder).forward, lean_forward))
            if not all(map(close, outputs, lean_outputs)):
                return otherwise
    return None


def row_sums(tensors):
    """The sums over all rows, in ascending order: captions of equal length may come in any."""
    return torch.cat([tensor.sum(dim=-1).flatten() for tensor in tensors]).sort().values if tensors else torch.empty(0)


def close(one, other, scale=None):
    """Equal in shape, and in value but for rounding."""
    scale = other.abs().max() if scale is None else scale
    return one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * (scale + 1e-8))
