"""Checks that several TODOs share."""

import difflib

import numpy as np
from checking import EARLIER, SLOWEST, dropped, same
from inputs import CLASS, DROPOUT

# --- Layers, dropout, gradients, speed ---


def check_layers(lab, kind):
    """Every layer that the TODO lists is there, under its name and with its sizes, and does what such a layer does."""
    answer = lab(f'{kind}_shapes', f'{CLASS[kind]}.__init__', stubs=())  # before any request that names them
    shapes = {name: tuple(shape.tolist()) for name, shape in answer.reply['arrays'].items()}
    wanted = {name: tuple(map(int, numbers)) for name, (_, numbers) in answer.expected.items()}
    for name, shape in wanted.items():
        layer = name.rpartition('.')[0]
        if name.startswith('attention.sizes'):
            i, made = answer.inputs, [shapes.get(f'attention.sizes.{n}', ('nothing',))[0] for n in range(3)]
            sizes = [i.encoder_dim, i.decoder_dim, i.attention_dim]
            answer.require(shapes.get(name) == shape,
                           f'self.attention made with encoder_dim, decoder_dim, attention_dim = {sizes}',
                           f'it is made with {made}' if 'nothing' not in made else 'it is never made',
                           'the order of the three sizes')
        elif name not in shapes:
            near = difflib.get_close_matches(name, [n for n in shapes if n not in wanted], 1)
            answer.wrong(f'a layer self.{layer} with {name} of shape {shape}',
                         f'there is no {name}' + (f', but {near[0]}' if near else ''),
                         'the layer has another name or kind, or is never made')
        answer.require(shapes[name] == shape, f'{name} of shape {shape}', f'its shape is {shapes[name]}',
                       f'the sizes that self.{layer} is made with: first that of what goes in, then that of what '
                       'comes out')
    for what in ('layers', *['equal'] * (kind != 'attention')):
        answer = lab(f'{kind}_{what}', f'{CLASS[kind]}.__init__', stubs=())
        answer.same(*(name for name in answer.expected if name != 'dropout'),
                    cause='the layer is of another kind' if what == 'layers' else
                    'where all sizes are equal, two layers share their weights')
    if kind != 'attention':
        check_probability(answer)


def check_probability(answer):
    """``self.dropout`` drops the share of ones that its probability says."""
    kept = answer['dropout'][answer['dropout'] != 0]
    share = 1 - 1 / kept.mean() if kept.size else 1.0
    answer.require(abs(share - DROPOUT) < 1e-4 and abs((answer['dropout'] == 0).mean() - DROPOUT) < 0.1,
                   f'self.dropout = nn.Dropout with probability {DROPOUT}', f'its probability is {share:.3g}',
                   'hand the parameter dropout on to nn.Dropout')


def check_dropout(lab, kind):
    """Dropout is on h before fc and nowhere else, and only in training (here it drops everything)."""
    answer = lab(f'{kind}_dropout', f'{CLASS[kind]}.one_step')
    answer.same('predictions', 'h', 'c', shape='batch_size, ...', cause='' if is_wrong(lab, kind) else
                'dropout must be off in eval(): use self.dropout, or F.dropout with training=self.training')
    answer.same('predictions in training', shape='batch_size, vocab_size',
                cause='dropout comes right before fc: when all of h is dropped, fc.bias is left')
    answer.same('h in training', 'c in training', 'h once more', 'c once more', shape='batch_size, decoder_dim',
                cause='only what goes into fc is dropped; the h and c of the next step stay whole')
    answer, patterns = lab(f'{kind}_half', f'{CLASS[kind]}.one_step'), []
    for call in ('', ' once more'):
        h, scores = answer[f'h{call}'], answer[f'predictions{call}']
        answer.require(scores.shape[1] > h.shape[1], 'a score for each word', f'their shape is {scores.shape}', '')
        times = dropped(answer.reply, call)
        halved = (np.abs(times) < 1e-4) | (np.abs(times - 2) < 1e-3)
        answer.require(halved.all() and 0 < times.mean() < 2,
                       'a part of h dropped and the rest doubled before fc, with dropout=0.5',
                       'what goes into fc is not 0 or 2 times h', 'dropout more than once, or h rescaled')
        patterns.append(times > 1)
    answer.require((patterns[0] != patterns[0][:1]).any(), 'other entries of h dropped for each caption',
                   'they are the same', 'one mask for all rows')
    answer.require((patterns[0] != patterns[1]).any(), 'other entries of h dropped at each call', 'they are the same',
                   'a random generator that is seeded again')


def is_wrong(lab, kind):
    """Whether one step is wrong already where nothing is dropped."""
    answer = lab(f'{kind}_step', f'{CLASS[kind]}.one_step')
    return not same(answer['predictions'], answer.expected['predictions'][1])


def check_not_seeded(answer):
    """After two calls that began with other random states, these are still others."""
    one, other = (answer.reply['arrays'].get(f'random numbers after it{call}') for call in ('', ' once more'))
    answer.require(one is None or other is None or (one != other).all(), 'a random generator that goes on',
                   'it is in the same state after every call', 'manual_seed or the like: then dropout, too, is always '
                   'the same')


def takes_keys(answer):
    """Whether the method takes ``keys``, which the text leaves to a student."""
    return ' with keys' in answer.errors or any(name.endswith(' with keys') for name in answer.reply['arrays'])


def check_gradients(answer):
    """What came out can be traced back to every input and layer."""
    for name in (name for name in answer.expected if name.startswith('gradient of')):
        if name.endswith(' with keys') and not takes_keys(answer):
            continue
        expected = answer.expected[name][1]
        if name not in answer.reply['arrays'] and not answer.errors:
            answer.wrong(name, 'there is no such layer', 'see test_layers')
        zero_in_theory = np.abs(expected).max() < 0.01 * answer.scale(name)
        answer.require(answer[name].any() or zero_in_theory, f'{name} not to be zero', 'it is zero',
                       'the value is computed without it, or .detach(), .data, .item() or no_grad cut it off')
        answer.same(name, cause='a part is cut off (.detach(), .data, no_grad), or computed in another way')


def check_speed(answer):
    """Compared with plain matrix products of about the same sizes."""
    answer.same(*answer.expected, cause='the numbers are wrong, so the time does not count')
    if answer.slowness > SLOWEST:
        answer.wrong(f'at most {SLOWEST} times the time of the matrix products in it',
                    f'it takes {answer.slowness:.0f} times as long',
                     'a Python loop over captions or pixels: work on the whole batch at once', slow=True)


# --- forward of both decoders (TODO 2 and TODO 5) ---


def ask(lab, kind, what='forward', **options):
    return lab(f'{kind}_{what}', f'{CLASS[kind]}.forward', **options)


def check_shapes_and_order(lab, kind):
    answer = ask(lab, kind)
    lengths = sorted((length - 1 for length in answer.inputs.lengths), reverse=True)
    answer.require(answer['decode_lengths'].tolist() == lengths,
                   f'decode_lengths {lengths} (caption lengths less 1, longest first)',
                   f'they are {answer["decode_lengths"].tolist()}', '<end> is never read: one step less, longest first')
    tokens, all_lengths = answer.inputs.captions()
    order = answer['sort_ind']
    answer.require(order.dtype == np.int64 and sorted(order.flatten().tolist()) == list(range(len(tokens))),
                   f'sort_ind to hold each of 0 ... {len(tokens) - 1} once', f'it is {order.flatten().tolist()[:9]}',
                   'return the indices that the sort gave you')
    answer.require(order.ndim == 1, f'sort_ind of shape {(len(tokens),)}', f'its shape is {order.shape}', '')
    sorted_lengths = (all_lengths[order, 0] - 1).tolist()
    answer.require(sorted_lengths == lengths, 'sort_ind to put the longest caption first',
                   f'it puts captions of {sorted_lengths} steps in this order',
                   'return the indices that the sort gave you')
    captions = answer['encoded_captions']
    answer.require(captions.shape == tokens.shape and (captions == tokens[order]).all(),
                   'encoded_captions, (batch_size, max_caption_length), to be the captions in the order of sort_ind',
                   'they are others', 'return the captions reordered by sort_ind, whole, with <start> and padding')
    size = (answer.inputs.batch, lengths[0], answer.inputs.vocab_size)
    answer.require(answer['predictions'].shape == size,
                   f'predictions of shape {size} = (batch_size, max(decode_lengths), vocab_size)',
                   f'their shape is {answer["predictions"].shape}', 'the sizes of the zeros that you fill')


def check_predictions(lab, kind):
    """The same as one_step, repeated, caption by caption; zero past a caption's end."""
    answer = ask(lab, kind)
    predictions = answer['predictions']
    for i, length in enumerate(answer.inputs.lengths):
        if predictions.shape == answer.expected['predictions'][0]:
            past = abs(predictions[i, length - 1:]).max(initial=0)
            answer.require(past == 0, f'zero past the end of caption {i} ({length - 1} steps)',
                           f'there are numbers up to {past:.3g}',
                           'at step t only the captions still running are written')
    answer.same('predictions', shape='batch_size, max(decode_lengths), vocab_size',
                cause='step t needs the word vectors of word t and the h and c that step t - 1 gave back, n rows '
                      'of each')
    answer.same('predictions once more', cause=(
        'forward changes encoder_out, the captions or their lengths in place, or leaves something behind'))
    stubs, _, main = EARLIER[lab.todo]
    with_stubs = ask(lab, kind, stubs=stubs) if lab.subject.works(main, stubs) else answer  # these do not drop anything
    with_stubs.same('predictions in training', shape='batch_size, max(decode_lengths), vocab_size',
                    cause='dropout is in one_step, before fc, and nowhere else')


def check_no_later_word_is_seen(lab, kind):
    """Change word t: the predictions before t stay, those from t on move."""
    usual, answer = ask(lab, kind), ask(lab, kind, 'time')
    lengths, before = answer.inputs.lengths, usual['predictions']
    for t in range(max(lengths) - 1):
        after = answer[f'predictions with another word {t}']
        if after.shape == before.shape:
            moved = np.abs(after - before).max(axis=2) > 1e-4 * np.abs(before).max()
            for i, length in enumerate(lengths):
                early = [s for s in range(min(t, length - 1)) if moved[i, s]]
                first = min(early, default=0)
                answer.require(not early, f'prediction {first} to know words 0 to {first} only',
                               f'it changes with word {t}', 'word t is read at step t, not earlier')
                answer.require(t >= length - 1 or moved[i, t], f'prediction {t} to depend on word {t}', 'it does not',
                               'step t reads the true word t, and h and c carry it on')
        answer.same(f'predictions with another word {t}', cause='step t reads the true word t')


def check_captions_do_not_touch_each_other(lab, kind):
    answer = ask(lab, kind)
    for name in (' in another order', ' of the first caption alone', ' padded with another word',
                 ' padded to the longest', ' with pixels in a row', ' with more cells'):
        for what in ('predictions', 'alphas')[:1 + (kind == 'attentive')]:
            answer.same(what + name, cause=(
                'the result of a caption must not depend on its place, its padding or its neighbours'
                if not is_wrong_forward(lab, kind) else
                'forward is wrong in the usual case already: see test_predictions'))


def is_wrong_forward(lab, kind):
    """Whether forward is wrong in the usual case already."""
    answer = ask(lab, kind)
    return not same(answer['predictions'], answer.expected['predictions'][1])


def check_works_in_training_and_beam_search(lab, kind):
    """As in training: batches one after another, and as large as the lab's. The same words one by one."""
    training, names = ask(lab, kind, 'training'), ('predictions', 'alphas')[:1 + (kind == 'attentive')]
    training.same(*names, cause='' if is_wrong_forward(lab, kind) else
                  'training makes a difference where nothing is dropped')
    training.same(*(f'{name} of the size of the lab' for name in names),
                  cause='a number of cells or of words is limited')
    training.same(*(f'{name} of large numbers' for name in names), cause='large numbers are cut off')
    training.same(*(f'{name} once more' for name in names), cause='a call leaves something behind for the next one')
    answer = ask(lab, kind)
    check_not_seeded(answer)
    answer.same('predictions in training once more', 'predictions after training',
                cause='a call in training leaves something behind: self.eval(), statistics, a changed tensor')
    answer.same('predictions word by word', cause='training reads other words or states than beam search does')


def check_device(lab, kind):
    """What is made must lie where encoder_out lies. Without a GPU this cannot be computed: no points."""
    answer = ask(lab, kind)
    made = answer['made on the CPU']
    names = [name for name, on_cpu in zip(('predictions', '', '', 'alphas'), made, strict=False) if name and on_cpu]
    answer.require(not names, 'tensors that lie where encoder_out lies', f'{" and ".join(names)} always lie on the CPU',
                   'make them on the device of encoder_out')

