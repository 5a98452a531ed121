"""What the checks of a bonus task ask the files of ``lab/more``: inputs and requests, as in ``tests/inputs.py``."""

import inputs as of_the_lab
import numpy as np
from inputs import FORWARD, STATE, Inputs, call

INPUTS = Inputs(encoder_dim=6, embed_dim=7, attention_dim=4, decoder_dim=9, vocab_size=19, columns=15)
ADAPTIVE, CELLS, BAHDANAU, CAPTIONNET, DECODER, SELF_CRITICAL, ENSEMBLES, WORD_VECTORS = (
    f'lab/more/{name}.py' for name in ('adaptive', 'cells', 'bahdanau', 'captionnet', 'decoder', 'self_critical',
                                       'ensembles', 'word_vectors'))
KINDS = {  # file, class (None: a function), options
    'spatial': (ADAPTIVE, 'DecoderWithSpatialAttention', {}),
    'adaptive': (ADAPTIVE, 'DecoderWithAdaptiveAttention', {}),
    **{cell.lower(): (CELLS, 'DecoderWithCell', {'cell': cell}) for cell in ('RNN', 'GRU', 'LSTM')},
    'additive': (BAHDANAU, 'BahdanauAttention', {}),
    'bahdanau': (BAHDANAU, 'DecoderWithBahdanauAttention', {}),
    'scaled': (CAPTIONNET, 'ScaledDotProductAttention', {}),
    'heads': (CAPTIONNET, 'ScaledDotProductAttention', {'heads': 2}),
    'captionnet': (CAPTIONNET, 'CaptionNet', {}),
    'twoheads': (CAPTIONNET, 'CaptionNet', {'heads': 2}),
    'own': (DECODER, None, {}),
    'surrogate': (SELF_CRITICAL, None, {}),
    # see bonus_protocol.py: ensembles of two decoders, which of them attend
    'alike': (ENSEMBLES, 'EnsembleOfStubs', {'attend': [True, True]}),
    'mixed': (ENSEMBLES, 'EnsembleOfStubs', {'attend': [True, False]}),
    'reversed': (ENSEMBLES, 'EnsembleOfStubs', {'attend': [False, True]}),
    'vectors': (WORD_VECTORS, 'WordVectors', {})}
CELL, ATTENTION, DECODERS = ('rnn', 'gru', 'lstm'), ('additive', 'scaled', 'heads'), ('alike', 'mixed', 'reversed')
OF_TODO = {
    6: [f'spatial_{what}' for what in ('shapes', 'layers', 'look', 'attend', 'step', 'dropout', 'masked', 'whole',
                                       'training')],
    7: [f'adaptive_{what}' for what in ('shapes', 'layers', 'sentinel', 'attend', 'whole', 'training')],
    8: [f'{cell}_{what}' for cell in CELL for what in ('step', 'whole')],
    9: ['additive_attention', *(f'bahdanau_{what}' for what in ('start', 'step', 'whole', 'training'))],
    10: ['scaled_attention', 'heads_attention', *(f'captionnet_{what}' for what in (
        'start', 'step', 'scores', 'dropout', 'masked', 'whole', 'training')), 'twoheads_whole'],
    11: ['own_words'], 12: ['surrogate_loss'], 13: [f'{which}_ensemble' for which in DECODERS], 14: ['vectors_load']}


def build(name, inputs, layers, stubs=()):
    """As ``inputs.build``; ``layers`` has the shapes of all weights. Nothing stands in for another TODO."""
    kind, _, what = name.partition('_')
    file, made, options = KINDS[kind]
    own = REQUESTS[what](inputs, kind)
    return {'file': file, 'make': made, 'sizes': sizes(inputs, kind, own.pop('dropout', 1.0)) | options,
            'weights': inputs.weights(layers.shapes.get(kind, {})), **own}


def sizes(inputs, kind, dropout=0.0):
    if kind in ATTENTION:
        return inputs.sizes('attention')
    if kind in ('vectors', *DECODERS):
        return {}
    return inputs.sizes('plain' if kind in CELL else 'attentive', dropout)


def parts(tensors, calls, **others):
    """What is a request's own; ``build`` adds the rest.

    :param others: ``replace``, as of ``bonus_protocol.WithAdapters``; ``dropout``, a probability (1 if it is not given)
    """
    return {'tensors': tensors, 'calls': calls, **others}


def in_every_way(tensors, method, args, outputs, more=()):
    """A method once and once more, of one caption alone, in training, and its gradients.

    :param tensors: those of one caption are added
    :param more: other calls
    """
    tensors |= {f'{name} of one': tensors[name][:1] for name in args}
    usual = method, args, outputs
    return [call('', *usual, mode='eval', random_numbers=1),
            call(' once more', *usual, random_numbers=2),
            call(' of one caption', method, [f'{name} of one' for name in args], outputs), *more,
            call('', *usual, gradient=args), call(' in training', *usual, mode='train'),
            call(' in training', *usual, gradient=args), call(' after training', *usual, mode='eval')]


def ask_shapes(inputs, kind):
    return parts({}, [], dropout=inputs.rates[0])


def ask_layers(inputs, kind):
    """Each layer by itself."""
    i = inputs
    made = {'embedding': None, 'W_a': i.encoder_dim, 'W_b': i.encoder_dim, 'decode_step': 2 * i.embed_dim,
            'W_v': i.decoder_dim, 'W_g': i.decoder_dim, 'w_h': i.attention_dim, 'fc': i.decoder_dim,
            **({'W_x': 2 * i.embed_dim, 'W_h': i.decoder_dim, 'W_s': i.decoder_dim} if kind == 'adaptive' else {})}
    tensors, calls = i.states() | {'into dropout': np.ones((40, 50), dtype=np.float32)}, []
    for name, width in made.items():
        tensors[f'into {name}'] = np.arange(i.batch) * 3 % i.vocab_size if width is None else i.wave(i.batch, width)
        lstm = name == 'decode_step'
        calls.append(call('', name, [f'into {name}', *[STATE] * lstm],
                          ['h of decode_step', 'm of decode_step'] if lstm else [name], mode='eval'))
    return parts(tensors, [*calls, call('', 'dropout', ['into dropout'], ['dropout'], mode='train')],
                 dropout=inputs.rates[0])


def pictures(inputs):
    more = inputs.pictures(*inputs.more_cells).reshape(inputs.batch, -1, inputs.encoder_dim)
    return {'encoder_out': inputs.pixels(), 'more cells': more, 'a grid': inputs.pictures()}


def ask_look(inputs, kind):
    tensors, outputs = pictures(inputs), ['V', 'keys', 'v_g']
    return parts(tensors, in_every_way(tensors, 'look', ['encoder_out'], outputs, [
        call(' with more cells', 'look', ['more cells'], outputs)]))


def at_a_step(inputs):
    i, widths = inputs, dict(h=inputs.decoder_dim, x=2 * inputs.embed_dim, h_before=inputs.decoder_dim,
                             tanh_m=inputs.decoder_dim)
    return {name: 0.9 * i.wave(i.batch, width, shift=shift) for shift, (name, width) in enumerate(widths.items())}


def of_the_picture(inputs):
    i = inputs
    return {'V': i.wave(i.batch, i.num_pixels, i.decoder_dim, shift=0.4),
            'keys': i.wave(i.batch, i.num_pixels, i.attention_dim, shift=0.5)}


def ask_attend(inputs, kind):
    tensors = of_the_picture(inputs) | at_a_step(inputs)
    return parts(tensors, in_every_way(tensors, 'attend', list(tensors), ['c', 'alpha']))


def ask_sentinel(inputs, kind):
    tensors = at_a_step(inputs)
    return parts(tensors, in_every_way(tensors, 'sentinel', ['x', 'h_before', 'tanh_m'], ['s']))


def of_a_step(inputs, kind):
    """What ``one_step`` gets and gives, and what stands in for the attention."""
    i = inputs
    before = {'embeddings': i.wave(i.batch, i.embed_dim, shift=1.3)}
    if kind in CELL:
        given = before | i.states()
        given = given if kind == 'lstm' else {name: given[name] for name in ('embeddings', 'h')}
        return given, [name for name in given if name != 'embeddings'], {}
    if kind == 'spatial':
        states = i.states()
        return ({**before, **of_the_picture(i), 'v_g': i.wave(i.batch, i.embed_dim, shift=1.4), 'h': states['h'],
                 'm': states['c']}, ['predictions', 'alpha', 'h', 'm'], {'attend': [i.decoder_dim, i.num_pixels]})
    return ({**before, 'encoder_out': i.pixels(), 'keys': of_the_picture(i)['keys'], **i.states()},
            [*['output'] * (kind == 'captionnet'), 'alpha', *STATE],
            {'attention.forward': [i.encoder_dim, i.num_pixels]})


def ask_step(inputs, kind):
    """Around the attention, in whose place a stub stands."""
    tensors, outputs, replace = of_a_step(inputs, kind)
    more = [call(' without a state', 'one_step', ['embeddings'], outputs)] if kind in CELL else []
    return parts(tensors, in_every_way(tensors, 'one_step', list(tensors), outputs, more), replace=replace, dropout=0.0)


def before_the_words(inputs, kind):
    """The method that ends in scores: its call."""
    if kind == 'spatial':
        tensors, outputs, replace = of_a_step(inputs, kind)
        return tensors, ('one_step', list(tensors), outputs), replace
    width = inputs.decoder_dim + inputs.encoder_dim + inputs.embed_dim
    return {'output': inputs.wave(inputs.batch, width)}, ('word_scores', ['output'], ['predictions']), {}


def ask_scores(inputs, kind):
    tensors, usual, replace = before_the_words(inputs, kind)
    return parts(tensors, in_every_way(tensors, *usual), replace=replace, dropout=0.0)


def ask_dropout(inputs, kind):
    """Everything is dropped."""
    tensors, usual, replace = before_the_words(inputs, kind)
    return parts(tensors, [call('', *usual, mode='eval'), call(' in training', *usual, mode='train'),
                           call(' in training once more', *usual)], replace=replace)


def ask_masked(inputs, kind):
    """One half is dropped, and fc gives what goes into it."""
    tensors, usual, replace = before_the_words(inputs, kind)
    weights = {'fc.weight': np.eye(inputs.vocab_size, inputs.decoder_dim, dtype=np.float32),
               'fc.bias': np.zeros(inputs.vocab_size, dtype=np.float32)}
    return parts(tensors, [call('', *usual, mode='eval', weights=weights), call(' in training', *usual, mode='train'),
                           call(' in training once more', *usual)], replace=replace, dropout=0.5)


def ask_start(inputs, kind):
    tensors = pictures(inputs)
    outputs = ['h', 'c', 'pixels', 'keys']
    return parts(tensors, in_every_way(tensors, 'start', ['a grid'], outputs, [
        call(' with pixels in a row', 'start', ['encoder_out'], outputs),
        call(' with more cells', 'start', ['more cells'], outputs)]))


def ask_attention(inputs, kind):
    tensors, calls = of_the_lab.ask_attention(inputs, kind, {})
    layer, outputs = 'U' if kind == 'additive' else 'key', ['context', 'alpha']
    calls = [{**one, 'outputs': outputs, 'keys': [layer, 'encoder_out'] if 'keys' in one else None} for one in calls]
    return parts({**tensors, 'keys': of_the_picture(inputs)['keys']}, [*calls, call(
        ' with other keys', 'forward', ['encoder_out', 'h', 'keys'], outputs, mode='eval')])


def of_a_decoder(tensors, calls, kind, dropout):
    """Requests of the lab's decoders: ``forward`` gives packed predictions here."""
    outputs = ['predictions', 'sizes', *FORWARD['plain' if kind in CELL else 'attentive'][1:]]
    return parts(tensors, [{**{key: value for key, value in one.items() if key != 'devices'},
                            'outputs': outputs if one['method'] == 'forward' else one['outputs']} for one in calls],
                 dropout=dropout)


def ask_whole(inputs, kind):
    tensors, calls, dropout = of_the_lab.ask_forward(inputs, 'plain' if kind in CELL else 'attentive', {})
    return of_a_decoder(tensors, calls, kind, dropout)


def ask_training(inputs, kind):
    tensors, calls = of_the_lab.ask_training(inputs, 'attentive', {})
    return of_a_decoder(tensors, calls, kind, 0.0)


WORDS_FED, SHARES = np.tile([3, 4], 3000), np.array([[0.5, 0.3, 0.2, 0, 0], [0.1, 0.2, 0.7, 0, 0]])


def ask_words(inputs, kind):
    """Every other row has other scores and another true word."""
    scores = np.log(np.maximum(SHARES, 1e-30)).astype(np.float32)[WORDS_FED - 3]
    tensors = {'true words': WORDS_FED, 'scores': scores, 'never': 0.0, 'a quarter': 0.25, 'always': 1.0}
    return parts(tensors, [call(f', teacher_forcing={share}', 'true_or_own', ['true words', 'scores', name], ['words'])
                           for name, share in list(tensors.items())[2:]])


def ask_loss(inputs, kind):
    i = inputs
    samples = 3
    tensors = {'log_p': -2 - i.wave(i.batch, samples), 'reward': 2 + 3 * i.wave(i.batch, samples, shift=0.8),
               'weights': 0.15 * (1.2 + i.wave(i.batch, shift=0.9)), 'greedy': 2 + i.wave(i.batch, shift=0.2),
               'none': None}
    calls = []
    for baseline, of in (('greedy', ''), ('none', ', baseline of the others')):
        loss = 'surrogate_loss', ['log_p', 'reward', baseline, 'weights'], ['loss']
        calls += [call(of, *loss, gradient=['log_p']), call(of, *loss), call(f'{of} once more', *loss)]
    return parts(tensors, calls)


def ask_ensemble(inputs, kind):
    attend = KINDS[kind][2]['attend']
    states = {f'state {n}': inputs.wave(inputs.batch, 3 + n, shift=n) for n in range(4)}
    memory = {f'memory {n}': inputs.wave(inputs.batch, inputs.num_pixels, 2 + n, shift=n) for n in range(sum(attend))}
    tensors = {'words': np.arange(inputs.batch), 'encoder_out': inputs.pixels(), 'captions': np.arange(
        3 * inputs.batch).reshape(inputs.batch, 3) % 11, **states, **memory}
    outputs = ['scores', *(f'new {name}' for name in states), *['alpha'] * all(attend)]
    step = 'step', ['words', list(states), list(memory)], outputs
    return parts(tensors, [call('', *step, random_numbers=1), call(' once more', *step, random_numbers=2), call(
        ' word by word', 'word by word', ['encoder_out', 'captions'], ['scores'])])


FILES = {
    '': 'red 1 2 3\nunheard 9 9 9\nstar 4 5 6\nstar 7 7 7\nNew York 1 0 1\n',
    ' of a file with a number that is none': 'blue 8 8 8\nstar 0 nan 0\n',
    ' of a file without its words': 'unheard 9 9 9\n'}


def ask_load(inputs, kind):
    return parts({'file' + of: text for of, text in FILES.items()}, [
        call(of, 'load', ['file' + of], ['words found', 'rows']) for of in FILES])


REQUESTS = {'shapes': ask_shapes, 'layers': ask_layers, 'look': ask_look, 'attend': ask_attend, 'step': ask_step,
            'dropout': ask_dropout, 'masked': ask_masked, 'whole': ask_whole, 'training': ask_training,
            'sentinel': ask_sentinel, 'start': ask_start, 'attention': ask_attention, 'scores': ask_scores,
            'words': ask_words, 'loss': ask_loss, 'ensemble': ask_ensemble, 'load': ask_load}
