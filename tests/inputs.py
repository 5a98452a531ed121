"""What the checks ask a ``models.py``: inputs in closed form, and the requests of each TODO (see ``protocol.py``).

All inputs are waves, the same in every version of torch. Each dimension has a size of its own, so that none can be
taken for another.
"""

import dataclasses
import functools
import math
import zlib

import numpy as np

PAD, UNK, START, END = 0, -3, -2, -1  # the last three words of a vocabulary
TIMES = 4  # of calls by which dropout is measured
LARGE = dict(batch=66, height=8, width=8, encoder_dim=42, embed_dim=48, attention_dim=56, decoder_dim=104,
             vocab_size=130, lengths=(3, 9, 13, *range(2, 12), 12, 13, *[7] * 51), columns=15)  # larger than others
CLASS = {'plain': 'DecoderWithRNN', 'attention': 'Attention', 'attentive': 'DecoderWithAttention'}
STATE = ['h', 'c']
STEP = {'plain': ['predictions', 'h', 'c'], 'attentive': ['predictions', 'alpha', 'h', 'c']}
FORWARD = {'plain': ['predictions', 'encoded_captions', 'decode_lengths', 'sort_ind'],
           'attentive': ['predictions', 'encoded_captions', 'decode_lengths', 'alphas', 'sort_ind']}
BATCH = ['encoder_out', 'encoded_captions', 'caption_lengths']
KIND_OF = {1: 'plain', 2: 'plain', 3: 'attention', 4: 'attentive', 5: 'attentive'}
LAYERS = ['shapes', 'layers', 'equal']
OF_STEP = ['start', 'step', 'dropout', 'rate']
OF_FORWARD = ['forward', 'training', 'batch', 'time', 'speed']
# which requests belong to a TODO. The shapes come first: no request tells a submission what it has not shown
OF_TODO = {todo: [f'{KIND_OF[todo]}_{what}' for what in requests] for todo, requests in {
    1: LAYERS + OF_STEP, 2: OF_FORWARD, 3: ['shapes', 'layers', 'forward', 'large', 'speed'], 4: LAYERS + OF_STEP,
    5: OF_FORWARD}.items()}


@functools.cache  # the same for every submission
def wave(*shape, shift=0.0):
    """Numbers in -1 ... 1 without a pattern in rows or columns."""
    i = np.arange(math.prod(shape), dtype=float)
    return np.sin(0.37 * i ** 2 + shift).reshape(shape).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Sizes, and a shift of all waves; the default is what the public checks use."""

    batch: int = 5
    height: int = 3
    width: int = 4
    encoder_dim: int = 7
    embed_dim: int = 6
    decoder_dim: int = 8
    attention_dim: int = 9
    vocab_size: int = 17
    lengths: tuple = (4, 11, 2, 7, 4)   # <start> and <end> counted: the third caption has no words
    columns: int = 14                   # of the padded captions
    more_cells: tuple = (5, 6)          # height and width of another grid
    rates: tuple = (0.35, 0.6)          # probabilities of dropout
    shift: float = 0.0
    secret: float = 0.0                 # another shift, of what is timed: nothing before tells of it

    @property
    def num_pixels(self):
        return self.height * self.width

    def named_sizes(self):
        """Name -> size, of all that a dimension can be; all are different."""
        return {'batch_size': self.batch, 'num_pixels': self.num_pixels, 'max(decode_lengths)': max(self.lengths) - 1,
                'encoder_dim': self.encoder_dim, 'embed_dim': self.embed_dim, 'decoder_dim': self.decoder_dim,
                'attention_dim': self.attention_dim, 'vocab_size': self.vocab_size,
                'embed_dim + encoder_dim': self.embed_dim + self.encoder_dim,
                '4 * decoder_dim, three gates and the new input of the LSTM': 4 * self.decoder_dim}

    def wave(self, *shape, shift=0.0):
        return wave(*shape, shift=shift + self.shift)

    def pictures(self, height=None, width=None):
        """(batch, height, width, encoder_dim); in another grid the first cell is zero, as a CNN's may be."""
        cells = 2 * self.wave(self.batch, height or self.height, width or self.width, self.encoder_dim, shift=0.3)
        if height:
            cells[:, 0, 0] = 0
        return cells

    def pixels(self):
        """(batch, num_pixels, encoder_dim)"""
        return self.pictures().reshape(self.batch, self.num_pixels, self.encoder_dim)

    def captions(self):
        """(batch, columns) word indices, and (batch, 1) lengths."""
        words, start, end = self.vocab_size - 4, self.vocab_size + START, self.vocab_size + END
        rows = [[start, *((3 * i + (i + 2) * t) % words + 1 for t in range(length - 2)), end]
                + [PAD] * (self.columns - length) for i, length in enumerate(self.lengths)]
        return np.array(rows), np.array(self.lengths)[:, None]

    def states(self):
        """h and c, each (batch, decoder_dim)"""
        size = self.batch, self.decoder_dim
        return {'h': self.wave(*size, shift=1.1), 'c': 2 * self.wave(*size, shift=1.2)}

    def weights(self, shapes, scale=0.6):
        """Name -> array for each name -> shape: another wave for each name."""
        arrays = {name: scale * self.wave(*shape, shift=zlib.crc32(name.encode()) % 1000)
                  for name, shape in shapes.items()}
        return {name: array / scale + 1.5 if name.endswith('running_var') else array for name, array in arrays.items()}

    def sizes(self, kind, dropout=0.0):
        """What a class is made with."""
        names = {'plain': ['embed_dim', 'decoder_dim', 'vocab_size', 'encoder_dim'],
                 'attention': ['encoder_dim', 'decoder_dim', 'attention_dim'],
                 'attentive': ['attention_dim', 'embed_dim', 'decoder_dim', 'vocab_size', 'encoder_dim']}[kind]
        sizes = {name: getattr(self, name) for name in names}
        return sizes if kind == 'attention' else {**sizes, 'dropout': dropout}


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of the reference for some inputs; the students' copy of the numbers is in ``expected.npz``.

    :ivar made: kind -> name -> [class, sizes]
    :ivar shapes: kind -> name of a parameter or statistic -> shape
    """

    made: dict
    shapes: dict

    def of(self, kind, own_attention):
        """For a request: layers, shapes of all weights."""
        made, shapes = dict(self.made[kind]), dict(self.shapes[kind])
        if kind == 'attentive':
            made['attention'] = ['Attention' if own_attention else 'StubAttention', *made['attention'][1:]]
            if own_attention:
                shapes |= {f'attention.{name}': shape for name, shape in self.shapes['attention'].items()}
        return made, shapes

    def resized(self, inputs, other):
        """The same layers for other inputs than those, which have a size of its own for each dimension."""
        sizes = {getattr(inputs, name): getattr(other, name) for name in (
            'encoder_dim', 'embed_dim', 'decoder_dim', 'attention_dim', 'vocab_size')}
        sizes |= {4 * inputs.decoder_dim: 4 * other.decoder_dim,
                  inputs.embed_dim + inputs.encoder_dim: other.embed_dim + other.encoder_dim}

        def renamed(numbers):
            return [sizes.get(n, n) for n in numbers]
        return Layers({kind: {name: [of, *renamed(numbers)] for name, (of, *numbers) in made.items()}
                       for kind, made in self.made.items()},
                      {kind: {name: renamed(shape) for name, shape in shapes.items()}
                       for kind, shapes in self.shapes.items()})


# --- The requests ---


def build(name, inputs, layers, stubs=()):
    """A request, as ``protocol.answer`` carries it out.

    :param name: such as 'plain_step'
    :param layers: :class:`Layers`
    :param stubs: of 'attention' and 'steps': what is not this TODO's own and not right
    """
    kind, _, what = name.partition('_')
    usual, other = inputs, OTHER_SIZES.get(what, {})
    inputs = dataclasses.replace(usual, **other)
    layers = layers.resized(usual, inputs) if other else layers
    of_layers = what in ('shapes', 'layers', 'equal')  # the attention inside a decoder is TODO 3's
    own_attention = 'attention' not in stubs and not of_layers
    made, shapes = layers.of(kind, own_attention)
    ask = ask_attention if name == 'attention_forward' else REQUESTS[what]
    tensors, calls, *dropout = ask(inputs, kind, made)
    dropout = dropout[0] if dropout else 0.0
    made = {layer: ['Dropout', dropout] if of == 'Dropout' else [of, *sizes] for layer, (of, *sizes) in made.items()}
    request = {'make': CLASS[kind], 'sizes': inputs.sizes(kind, dropout), 'stubs': list(stubs), 'tensors': tensors,
               'permuted': what not in CONTIGUOUS, 'calls': calls}
    if what == 'shapes':  # nothing in it tells the names that are asked for
        return {**request, 'stubs': ['attention']}
    if what in ('layers', 'equal'):  # on what is there, nothing is put in
        return {**request, 'stubs': ['attention'], 'weights': inputs.weights(shapes)}
    scale = 0.2 if other else 0.6  # with more inputs of that size the gates of an LSTM would be shut
    return {**request, 'layers': made, 'weights': inputs.weights(shapes, scale), 'timed': what == 'speed'}


def call(name, method, args, outputs, **options):
    return {'name': name, 'method': method, 'args': args, 'outputs': outputs, **options}


def ask_shapes(inputs, kind, made):
    return {}, [], inputs.rates[0]


def ask_layers(inputs, kind, made):
    """Each layer by itself."""
    tensors, calls = dict(inputs.states()), []
    for name, (of, *sizes) in made.items():
        tensors[f'into {name}'] = {
            'Embedding': np.arange(inputs.batch) // 2 * 3 % inputs.vocab_size,  # a word may come twice
            'Dropout': np.ones((40, 50), dtype=np.float32)}.get(of)
        if tensors[f'into {name}'] is None:
            tensors[f'into {name}'] = inputs.wave(inputs.batch, sizes[0])
        args, outputs = [f'into {name}'], [name]
        if of == 'LSTMCell':
            args, outputs = [f'into {name}', STATE], [f'h of {name}', f'c of {name}']
        if of == 'StubAttention':
            tensors[f'into {name}'] = inputs.pixels()
            args, outputs = [f'into {name}', 'h'], [f'z of {name}', f'alpha of {name}']
            calls.append(call(' of each pixel', f'{name}.encoder_att', args[:1], [name]))
        calls.append(call('', name, args, outputs, mode='train' if of == 'Dropout' else 'eval'))
        if of == 'Embedding':
            calls.append({**calls[-1], 'gradient': args})
    return tensors, calls, inputs.rates[0]


def ask_start(inputs, kind, made):
    """Dropout would drop everything: there must be none here."""
    tensors = {'encoder_out': inputs.pixels(), 'one picture': inputs.pixels()[:1],
               'more cells': inputs.pictures(*inputs.more_cells).reshape(inputs.batch, -1, inputs.encoder_dim)}
    start = ('init_hidden_state', ['encoder_out'], STATE)
    return tensors, [
        call('', *start, mode='eval', random_numbers=1),
        call(' once more', *start, random_numbers=2),
        call(' of one picture', 'init_hidden_state', ['one picture'], STATE),
        call(' with more cells', 'init_hidden_state', ['more cells'], STATE),
        call(' (eval)', *start, gradient=start[1]), call(' (training)', *start, mode='train', gradient=start[1]),
        call(' in training', *start), call(' in training once more', *start),
        call(' after training', *start, mode='eval')], 1.0


def ask_step(inputs, kind, made):
    """Calls of ``one_step``; the first is the usual one."""
    attends = kind == 'attentive'
    names = ['embeddings', *['encoder_out'] * attends, *STATE]
    tensors = {'embeddings': inputs.wave(inputs.batch, inputs.embed_dim, shift=1.3), **inputs.states()}
    if attends:
        tensors |= {'encoder_out': inputs.pixels(), 'encoder_out with more cells': inputs.pictures(
            *inputs.more_cells).reshape(inputs.batch, -1, inputs.encoder_dim)}
    tensors |= {f'{name} of one caption': tensors[name][:1] for name in names}
    step, keys = ('one_step', names, STEP[kind]), ['attention.encoder_att', 'encoder_out']
    calls = [call('', *step, mode='eval', random_numbers=1),
             call(' once more', *step, random_numbers=2),
             call(' of one caption', 'one_step', [f'{name} of one caption' for name in names], STEP[kind]),
             call('', *step, gradient=names), call(' in training', *step, mode='train'),
             call(' in training', *step, gradient=names)]
    large = {f'large {name}': 10 * tensors[name] for name in names if name != 'encoder_out'}
    tensors |= large
    if attends:
        more = [f'{name} with more cells' if name == 'encoder_out' else name for name in names]
        calls += [call(' with more cells', 'one_step', more, STEP[kind], mode='eval'),
                  call(' with keys', *step, keys=keys), call(' with keys once more', *step, keys=keys),
                  call(' with keys', *step, keys=keys, gradient=names)]
        size = [inputs.encoder_dim, inputs.decoder_dim]
        gates = {name: np.full(size[:1], value, dtype=np.float32)
                 for name, value in (('shut', -1000), ('half open', 0), ('open', 1000))}
        calls += [call(f', gate {name}', *step, weights={
            'f_beta.weight': np.zeros(size, dtype=np.float32), 'f_beta.bias': bias}) for name, bias in gates.items()]
    weights = {'fc.weight': 9 * inputs.wave(inputs.vocab_size, inputs.decoder_dim)}
    calls.append(call(' of large numbers', 'one_step', [name if name == 'encoder_out' else f'large {name}'
                                                        for name in names], STEP[kind], mode='eval', weights=weights))
    return tensors, calls


def ask_dropout(inputs, kind, made):
    """Everything is dropped."""
    tensors, calls = ask_step(inputs, kind, made)
    step = {**calls[0], 'random_numbers': None}
    return tensors, [step, {**step, 'name': ' in training', 'mode': 'train'},
                     {**step, 'name': ' in training once more', 'mode': 'train'}], 1.0


def ask_rate(inputs, kind, made):
    """Sizes are larger than elsewhere, and a part of h is dropped; fc gives what goes into it. The scores in training
    are random: they are judged by themselves."""
    tensors, (usual, *_) = ask_step(inputs, kind, made)
    weights = {'fc.weight': np.eye(inputs.vocab_size, inputs.decoder_dim, dtype=np.float32),
               'fc.bias': np.zeros(inputs.vocab_size, dtype=np.float32)}
    usual, *training = again_and_again({**usual, 'random_numbers': None, 'weights': weights})
    large = call(' of a large picture', 'init_hidden_state', ['encoder_out'], STATE, mode='eval')  # before bn learns
    return {name: tensors[name] for name in usual['args']} | {'encoder_out': inputs.pixels()}, [
        usual, large, *training], inputs.rates[0]


def again_and_again(usual):
    """A call, and the same in training, a few times."""
    again = [{**usual, 'name': f' in training {n}', 'mode': 'train'} for n in range(TIMES)]
    return [{**usual, 'name': ' of large sizes'}, *again]


def ask_large(inputs, kind, made):
    return {'encoder_out': inputs.pixels(), 'h': inputs.states()['h']}, [
        call(' of large sizes', 'forward', ['encoder_out', 'h'], ['z', 'alpha'], mode='eval')]


def ask_attention(inputs, kind, made):
    pixels, h = inputs.pixels(), inputs.states()['h']
    order = other_order(inputs.num_pixels)
    tensors = {
        'encoder_out': pixels, 'h': h, 'pixels in another order': pixels[:, order],
        'one picture': pixels[:1], 'one h': h[:1], 'equal pixels': np.repeat(pixels[:, :1], inputs.num_pixels, axis=1),
        'strong pixels': 50 * pixels,
        'more cells': inputs.pictures(*inputs.more_cells).reshape(inputs.batch, -1, inputs.encoder_dim)}
    outputs, keys = ['z', 'alpha'], ['encoder_att', 'encoder_out']
    attend = ('forward', ['encoder_out', 'h'], outputs)
    others = [call(f' with {name}', 'forward', [name, 'h'], outputs)
              for name in ('pixels in another order', 'equal pixels', 'strong pixels', 'more cells')]
    return tensors, [
        call('', *attend, mode='eval', random_numbers=1),
        call(' once more', *attend, random_numbers=2),
        call(' of one picture', 'forward', ['one picture', 'one h'], outputs), *others,
        call(' with keys', *attend, keys=keys), call(' with keys once more', *attend, keys=keys),
        call('', *attend, gradient=attend[1]), call(' with keys', *attend, keys=keys, gradient=attend[1]),
        call(' in training', *attend, mode='train'), call(' in training', *attend, gradient=attend[1])]


def ask_forward(inputs, kind, made):
    """The same captions in other company: another order, each alone, other padding. Dropout would drop everything."""
    (tokens, lengths), pictures = inputs.captions(), inputs.pictures()
    order, after_end = other_order(inputs.batch), np.arange(inputs.columns) >= lengths
    batches = {
        '': (pictures, tokens, lengths),
        ' in another order': (pictures[order], tokens[order], lengths[order]),
        ' of the first caption alone': (pictures[:1], tokens[:1], lengths[:1]),
        ' padded with another word': (pictures, np.where(after_end, 3, tokens), lengths),
        ' padded to the longest': (pictures, tokens[:, :max(inputs.lengths)], lengths),
        ' with pixels in a row': (inputs.pixels(), tokens, lengths),
        ' with more cells': (inputs.pictures(*inputs.more_cells), tokens, lengths)}
    tensors = {part + name: array for name, batch in batches.items() for part, array in zip(BATCH, batch, strict=True)}
    tensors['words'] = tokens[:, :4]
    tensors |= of_different_lengths(tensors)
    forward = ('forward', BATCH, FORWARD[kind])
    return tensors, [
        *(call(name, 'forward', [part + name for part in BATCH], FORWARD[kind], random_numbers=None if name else 1)
          for name in batches),
        call(' once more', *forward, random_numbers=2, devices=True),
        call(' word by word', 'word by word', ['encoder_out', 'words'], ['predictions']),
        call('', 'forward', DIFFERENT, FORWARD[kind], gradient=BATCH), call(' in training', *forward, mode='train'),
        call(' in training once more', *forward), call(' after training', *forward, mode='eval')], 1.0


def of_different_lengths(tensors):
    """One caption of each length: in a mixture of all scores, as for gradients, the order of equal ones would count."""
    rows = np.unique(tensors['caption_lengths'], return_index=True)[1]
    return {name: tensors[part][rows] for name, part in zip(DIFFERENT, BATCH, strict=True)}


def ask_training(inputs, kind, made):
    """As in training, but nothing is dropped; large pictures, long captions without padding; large word vectors."""
    (tokens, lengths), pictures = inputs.captions(), inputs.pictures()
    long = np.resize(tokens[:1, 1:3], (2, 52))
    tensors = {**dict(zip(BATCH, (pictures, tokens, lengths), strict=True)), 'many cells': inputs.pictures(14, 14)[:2],
               'long captions': long, 'long lengths': np.array([[31], [52]])}
    tensors |= of_different_lengths(tensors)
    forward = ('forward', BATCH, FORWARD[kind])
    weights = {'embedding.weight': 5 * inputs.wave(inputs.vocab_size, inputs.embed_dim)}
    return tensors, [
        call(' in training', *forward, mode='train'), call(' in training once more', *forward),
        call(' in training', 'forward', DIFFERENT, FORWARD[kind], gradient=BATCH),
        call(' in training (frozen encoder)', 'forward', DIFFERENT, FORWARD[kind], gradient=[]),
        call(' in training of long captions', 'forward', ['many cells', 'long captions', 'long lengths'],
             FORWARD[kind]),
        call(' in training of large numbers', *forward, weights=weights)]


def ask_batch(inputs, kind, made):
    """As :func:`ask_rate`, with another part and the usual fc."""
    tokens, lengths = inputs.captions()
    return dict(zip(BATCH, (inputs.pictures(), tokens, lengths), strict=True)), again_and_again(
        call('', 'forward', BATCH, FORWARD[kind], mode='eval')), inputs.rates[1]


def ask_time(inputs, kind, made):
    """Change word t: which predictions notice?"""
    tokens, lengths = inputs.captions()
    tensors, calls = {'encoder_out': inputs.pictures(), 'caption_lengths': lengths}, []
    for t in range(max(inputs.lengths) - 1):
        tensors[f'another word {t}'] = tokens.copy()
        tensors[f'another word {t}'][:, t] = np.where(
            t < lengths[:, 0] - 1, tokens[:, t] % (inputs.vocab_size - 4) + 1, tokens[:, t])  # a word for a word
        calls.append(call(f' with another word {t}', 'forward', ['encoder_out', f'another word {t}', 'caption_lengths'],
                          FORWARD[kind]))
    return tensors, calls


def ask_speed(inputs, kind, made):
    """Many different calls on a batch of usual size: nothing can be left out, and a loop over its rows takes long."""
    big = dataclasses.replace(inputs, batch=64, height=7, width=7, lengths=(22,) * 64, columns=22,
                              shift=inputs.shift + inputs.secret)
    if kind == 'attention':
        tensors = {'encoder_out': big.pixels()}
        tensors |= {f'h {i}': big.wave(big.batch, big.decoder_dim, shift=i) for i in range(SPEED_CALLS[kind])}
        return tensors, [call(f' {i}', 'forward', ['encoder_out', f'h {i}'], ['z', 'alpha'])
                         for i in range(SPEED_CALLS[kind])]
    tokens, lengths = big.captions()
    tensors = {'encoded_captions': tokens, 'caption_lengths': lengths}
    tensors |= {f'encoder_out {i}': big.pictures() + i for i in range(SPEED_CALLS[kind])}
    return tensors, [call(f' {i}', 'forward', [f'encoder_out {i}', *BATCH[1:]], FORWARD[kind])
                     for i in range(SPEED_CALLS[kind])]


def other_order(n):
    return np.roll(np.arange(n), 2)[::-1].copy()


DIFFERENT = [part + ' of different lengths' for part in BATCH]
SPEED_CALLS = {'plain': 16, 'attention': 200, 'attentive': 8}
OTHER_SIZES = {'equal': dict.fromkeys(('embed_dim', 'encoder_dim', 'decoder_dim', 'attention_dim'), 8),
               **dict.fromkeys(('large', 'rate', 'batch'), LARGE)}
CONTIGUOUS = ('large', 'rate', 'batch', 'speed')  # the others as Encoder gives them
REQUESTS = {'shapes': ask_shapes, 'layers': ask_layers, 'start': ask_start, 'step': ask_step, 'dropout': ask_dropout,
            'rate': ask_rate, 'large': ask_large, 'equal': ask_layers, 'forward': ask_forward, 'training': ask_training,
            'batch': ask_batch, 'time': ask_time, 'speed': ask_speed}
