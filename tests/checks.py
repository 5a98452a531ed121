"""Checks that several TODOs share."""

import difflib

import numpy as np
from checking import EARLIER, SLOWEST
from inputs import CLASS, TIMES

SURE = 8  # standard deviations: what is right fails by luck less often than once in a million times

# --- Layers, dropout, gradients, speed ---


def check_layers(lab, kind):
    """Every layer that the TODO lists is there, under its name and with its sizes, and does what such a layer does."""
    answer = lab(f'{kind}_shapes', f'{CLASS[kind]}.__init__', stubs=())  # before any request that names them
    shapes = {name: tuple(shape.tolist()) for name, shape in answer.reply['arrays'].items()}
    wanted = {name: tuple(map(int, numbers)) for name, (_, numbers) in answer.expected.items()}
    made = lab.subject.stored.layers.made
    for name, shape in wanted.items():
        layer = name.rpartition('.')[0]
        of, *sizes = (made[kind] | {f'attention.{part}': one for part, one in made['attention'].items()})[layer]
        rule = f'self.{layer} is nn.{of} of sizes {", ".join(map(lab.size, sizes))}, with its default options'
        if name not in shapes:
            near = difflib.get_close_matches(name, [n for n in shapes if n not in wanted], 1)
            answer.wrong(f'a layer self.{layer} with {name} of shape {shape}',
                         f'there is no {name}' + (f', but {near[0]}' if near else ''), rule=rule)
        answer.require(shapes[name] == shape, f'{name} of shape {shape}', f'the shape is {shapes[name]}', rule=rule)
    for what in ('layers', *['equal'] * (kind != 'attention')):
        answer = lab(f'{kind}_{what}', f'{CLASS[kind]}.__init__', stubs=())
        answer.same(*(name for name in answer.expected if name != 'dropout'),
                    cause='the layer is of another kind, has another option, or shares its weights')
    if kind != 'attention':
        check_probability(answer)


def check_probability(answer):
    """``self.dropout`` drops the share of ones that its probability says, each by itself."""
    probability, came = answer.inputs.rates[0], answer['dropout']
    share = 1 - 1 / came[came != 0].mean() if came.any() else 1.0
    of_share, of_pattern = randomness(came != 0, probability)
    answer.require(abs(share - probability) < 1e-4, f'self.dropout = nn.Dropout with probability {probability:.3g}',
                   f'its probability is {share:.3g}' if 0 <= share <= 1 else 'it gives other numbers than nn.Dropout',
                   rule='self.dropout is nn.Dropout, and gets the parameter dropout')
    answer.require(max(of_share, of_pattern) < SURE, 'self.dropout to drop each entry by itself',
                   'entries are dropped together', 'nn.Dropout1d and the like drop whole rows: take nn.Dropout')


def randomness(kept, probability):
    """How far entries are from being kept one by one, each by a throw of its own.

    :param kept: (..., size) bool, which are not dropped
    :param probability: of being dropped
    :return: in standard deviations, the distance of the share; the largest correlation of entries that lie any number
        of places apart, or the largest distance of the spread of the sums over rows and over columns
    """
    root = kept.size ** 0.5
    noise = (kept - kept.mean()) / (kept.std() or 1)
    correlation = np.fft.irfft(np.abs(np.fft.rfft(noise.ravel())) ** 2, noise.size)[1:] / root
    table = noise.reshape(-1, noise.shape[-1])
    spread = [((table.sum(axis) ** 2).mean() / size - 1) * (table.size / size / 2) ** 0.5
              for axis, size in enumerate(table.shape)]
    share = (kept.mean() - (1 - probability)) * root / (probability * (1 - probability)) ** 0.5
    return abs(share), np.abs([*correlation, *spread]).max()


def check_dropout(lab, kind):
    """Dropout is on h before fc and nowhere else, and only in training (first, it drops everything)."""
    answer, usual = (lab(f'{kind}_{what}', f'{CLASS[kind]}.one_step') for what in ('dropout', 'step'))
    right = usual.is_right('predictions', 'h', 'c')
    answer.same('predictions', 'h', 'c', shape='batch_size, ...',
                note='' if right else 'one_step is wrong where nothing is dropped, too',
                rule='in eval() nothing is dropped: self.dropout, or F.dropout with training=self.training')
    answer.same('predictions in training', shape='batch_size, vocab_size',
                rule='dropout comes right before fc: when all of h is dropped, fc.bias is left')
    answer.same('h in training', 'c in training', 'h in training once more', 'c in training once more',
                shape='batch_size, decoder_dim',
                rule='only what goes into fc is dropped; the h and c of the next step stay whole')
    check_rate(lab(f'{kind}_rate', f'{CLASS[kind]}.one_step'))


def check_rate(answer):
    """Each entry of h is dropped with the same probability, whatever happens to others; the rest grow."""
    answer.same('predictions of large sizes', note='it is wrong where nothing is dropped, too')
    request = answer.lab.subject.request(answer.name, answer.stubs)
    weights = request['weights'] | request['calls'][0].get('weights', {})
    rate = request['sizes']['dropout']
    usual, *dropped = [answer[name] for name in ('predictions of large sizes', *(
        f'predictions in training {n}' for n in range(TIMES)))]
    answer.require(all(scores.shape == usual.shape for scores in dropped),
                   f'predictions in training of shape {usual.shape}', 'the shape is another')
    before_fc = np.linalg.pinv(weights['fc.weight'].astype(float)).T
    running = usual.any(axis=-1)
    h, *into_fc = [(scores[running] - weights['fc.bias']) @ before_fc for scores in (usual, *dropped)]
    into_fc = np.stack(into_fc)
    whole = np.take_along_axis(into_fc, np.abs(into_fc).argmax(axis=0)[None], axis=0)
    if not answer.method.endswith('forward'):  # in training forward has another h, because of bn
        whole = h[None] / (1 - rate)
    largest, factor = np.abs(whole).max(), f'{1 / (1 - rate):.3g} times'
    kept = np.abs(into_fc) > 1e-4 * largest
    answer.require(np.abs(into_fc - kept * whole).max() <= 1e-3 * largest,
                   f'a part of h dropped and the rest {factor} as large before fc, with dropout={rate:.3g}',
                   f'what goes into fc is not 0 or {factor} h', 'dropout more than once, or h rescaled')
    of_share, of_pattern = randomness(kept, rate)
    answer.require((kept[0] != kept[1]).any(), 'other entries of h dropped at each call', 'they are the same',
                   'a random generator that is seeded again')
    answer.require(of_pattern < SURE, 'each entry of h dropped by itself', 'entries of h are dropped together',
                   'one mask for several captions or calls, or for all of a caption')
    answer.require(of_share < SURE, f'{rate:.0%} of h dropped', f'{1 - kept.mean():.1%} are', 'another probability')


def check_not_seeded(answer):
    """After two calls that began with other random states, these are still others."""
    one, other = (answer[f'random numbers after it{call}'] for call in ('', ' once more'))
    answer.require(one.shape == other.shape == (3,) and (one != other).all(), 'a random generator that goes on',
                   'it is in the same state after every call', 'manual_seed or the like: then dropout, too, is always '
                   'the same')


def takes_keys(answer):
    """Whether the method takes ``keys``, which the text leaves to a student. If not, Python says so at the call."""
    error = answer.errors.get(' with keys', {})
    return error.get('line') is not None or "unexpected keyword argument 'keys'" not in error.get('error', '')


def check_gradients(answer):
    """What came out can be traced back to every input and layer."""
    for name in (name for name in answer.expected if name.startswith('gradient of')):
        if name.endswith(' with keys') and not takes_keys(answer):
            continue
        answer.same(name, cause=(
            'a part is cut off (.detach(), .data, no_grad, requires_grad=False), or computed in another way'))


def check_speed(answer):
    """Compared with plain matrix products of about the same sizes."""
    answer.same(*answer.expected, note='the numbers are wrong, so the time does not count')
    if answer.slowness > SLOWEST:
        answer.wrong(f'at most {SLOWEST} times the time of the matrix products in it',
                     f'it takes longer, {answer.slowness:.1f} times',
                     'a Python loop over captions or pixels, or a print of tensors')


# --- forward of both decoders (TODO 2 and TODO 5) ---


def ask(lab, kind, what='forward', **options):
    return lab(f'{kind}_{what}', f'{CLASS[kind]}.forward', **options)


def outputs(kind, call=''):
    """Names of the numbers that forward gives."""
    return [what + call for what in ('predictions', 'alphas')[:1 + (kind == 'attentive')]]


def check_shapes_and_order(lab, kind):
    """What forward gives beside its numbers is that which training needs."""
    answer = ask(lab, kind)
    (tokens, lengths), size = answer.inputs.captions(), answer.expected['predictions'][0]
    for call in ('', ' in training'):
        usual = call and 'it is right in eval(): training makes a difference, or a call leaves something behind'
        order, captions, scores = (answer[name + call] for name in ('sort_ind', 'encoded_captions', 'predictions'))
        answer.same(f'decode_lengths{call}', note=usual,
                    rule='for each caption one step less than it has words, the longest caption first')
        answer.require(order.dtype == np.int64 and order.ndim == 1 and sorted(order) == list(range(len(tokens))),
                       f'sort_ind{call} to hold each of 0 ... {len(tokens) - 1} once, of dtype torch.long',
                       f'it is {order.flatten()[:9].round(3).tolist()}', note=usual,
                       rule='the indices that the sort gave you')
        steps = (lengths[order, 0] - 1).tolist()
        answer.require(steps == sorted(steps, reverse=True), f'sort_ind{call} to put the longest caption first',
                       f'it puts captions of {steps} steps in this order', note=usual,
                       rule='the indices that the sort gave you, in the order of the batch that it sorted')
        answer.require(captions.dtype == np.int64, f'encoded_captions{call} of dtype torch.long', 'they are floats')
        answer.same(f'encoded_captions{call}', shape='batch_size, max_caption_length', note=usual,
                    rule='the captions in the order of sort_ind, complete, with <start>, <end> and padding')
        answer.require(scores.shape == size, f'predictions{call} of shape {size} = (batch_size, max(decode_lengths), '
                       'vocab_size)', f'the shape is {scores.shape}', note=usual,
                       rule='the zeros that you fill have these sizes, and keep them')


def check_where_it_is_zero(answer, name):
    rows, lengths = answer[name], np.array(answer.inputs.lengths)
    answer.require(rows.dtype.kind == 'f', f'{name} of the dtype of encoder_out', 'they are whole numbers')
    if rows.shape == answer.expected[name][0]:
        written, steps = rows.any(axis=2), np.arange(rows.shape[1])
        ends = written.sum(axis=1, keepdims=True)
        mixed = sorted(ends[:, 0]) == sorted(lengths - 1) and (written == (steps < ends)).all()
        for i, t in np.argwhere(written != (steps < lengths[:, None] - 1))[:1]:
            answer.wrong(f'{name} of a caption of {lengths[i]} words to hold numbers at steps 0 to {lengths[i] - 2}, '
                         'then zeros', f'there are {"numbers" if written[i, t] else "zeros"} at step {t}',
                         f'at some steps the rows of {name} are not in the order of sort_ind' if mixed else
                         'the loop ends after step 0: a return or break in it, or a range too short'
                         if not written[:, 1:].any() else
                         f'only the last step is there: one_step comes after the loop, or {name} is made anew in it'
                         if not written[:, :-1].any() else '',
                         rule='the results of step t belong at [:n, t], for the n captions with a decode length above '
                              't; nothing else is written or computed there')


def check_predictions(lab, kind):
    """The same as one_step, repeated, caption by caption; zero past a caption's end."""
    answer = ask(lab, kind)
    check_where_it_is_zero(answer, 'predictions')
    mixed = not answer.is_right('predictions') and answer.is_right('predictions of the first caption alone')
    answer.same('predictions', shape='batch_size, max(decode_lengths), vocab_size', cause=mixed * (
        'a caption alone comes out right, so in a batch the pixels, words or states of different captions meet: sort '
        'each of them once, all by one sort_ind, and cut each to its first n rows'), rule=(
        'step t gets the vectors of word t and the h and c of step t - 1, step 0 those of init_hidden_state; its '
        'scores stay as they are' if kind == 'plain' else
        'step t gets the vectors of word t, the pixels, the h and c of step t - 1, step 0 those of init_hidden_state, '
        'and, if you hand them over, the keys as encoder_att gives them; its scores stay as they are'))
    answer.same('predictions once more', cause=(
        'forward changes encoder_out, the captions or their lengths in place, or leaves something behind'))
    stubs, _, main = EARLIER[lab.todo]
    with_stubs = ask(lab, kind, stubs=stubs) if lab.subject.works(main, stubs) else answer  # these do not drop anything
    with_stubs.same('predictions in training', shape='batch_size, max(decode_lengths), vocab_size',
                    rule='in training, too, one_step gets whole vectors and states, and forward returns what it gives, '
                         'whatever was called before: dropout is in one_step alone')
    ask(lab, kind, 'batch').same('predictions of large sizes', **if_usual(
        answer, ['predictions'], 'it works for few captions, words or cells only, or for short vectors'))


def check_no_later_word_is_seen(lab, kind):
    """Change word t: the predictions before t stay, those from t on move."""
    usual, answer = ask(lab, kind), ask(lab, kind, 'time')
    for t in range(max(answer.inputs.lengths) - 1):
        answer.same(f'predictions with another word {t}', shape='batch_size, max(decode_lengths), vocab_size',
                    **if_usual(usual, ['predictions']),
                    rule=f'word {t} is read at step {t}, not earlier, and h and c carry it on')


def if_usual(usual, names, cause='', note=''):
    """What is special in a call counts only if the usual call is right."""
    if usual.is_right(*names):
        return dict(cause=cause, note=note)
    return dict(note='it is wrong in the usual case already')


def check_captions_do_not_touch_each_other(lab, kind):
    answer = ask(lab, kind)
    usual = if_usual(answer, outputs(kind))
    for call in (' in another order', ' of the first caption alone', ' padded with another word',
                 ' padded to the longest', ' with pixels in a row', ' with more cells'):
        answer.same(*outputs(kind, call), **usual, rule=(
            'the result of a caption does not depend on its place, its padding or its neighbours'))


def check_works_in_training_and_beam_search(lab, kind):
    """As in training: batches one after another; large numbers of cells and words. The same words one by one."""
    answer, training = ask(lab, kind), ask(lab, kind, 'training')
    for call, said_as, text in (
            ('', 'cause', 'forward calls eval(), or drops something itself'),
            (' of long captions', 'note', 'here are 196 cells, and captions of 31 and 52 words without <pad>'),
            (' of large numbers', 'cause', 'large numbers are cut off, or a call before changed what came in'),
            (' once more', 'cause', 'a call leaves something behind for the next one')):
        training.same(*outputs(kind, f' in training{call}'), **if_usual(answer, outputs(kind), **{said_as: text}))
    check_not_seeded(answer)
    batch = ask(lab, kind, 'batch')
    if not batch.stubs:  # those drop nothing
        check_rate(batch)
    answer.same('predictions in training once more', 'predictions after training',
                cause='a call in training leaves something behind: self.eval(), statistics, a changed tensor')
    answer.same('predictions word by word', **if_usual(
        answer, outputs(kind), 'training reads other words or states than beam search does'))


def check_device(lab, kind):
    """What is made must lie where encoder_out lies. Without a GPU this cannot be computed: no points."""
    answer = ask(lab, kind)
    *made, line = answer['made on the CPU']
    outputs = 'predictions', 'encoded_captions', '', 'alphas'  # lengths and sort_ind may
    names = [name for name, on_cpu in zip(outputs, made, strict=False) if name and on_cpu]
    rule = 'what you make lies on the device of encoder_out; numpy takes tensors of the CPU only'
    answer.require(not names, 'tensors that lie where encoder_out lies', f'{" and ".join(names)} always lie on the CPU',
                   rule=rule)
    answer.require(not line, 'to run on a GPU, too', f'line {line} of models.py needs a CPU', rule=rule)

