"""Checks that several TODOs share."""

import difflib

import numpy as np
from checking import EARLIER, SLOWEST, dropped, same
from inputs import CLASS, DROPOUT

# --- Layers, dropout, gradients, speed ---


def check_layers(lab, kind):
    """Every layer that the TODO lists is there, under its name and with its sizes, and does what such a layer does."""
    found = lab(f'{kind}_shapes', f'{CLASS[kind]}.__init__')
    shapes = {name: tuple(shape.tolist()) for name, shape in found.reply['arrays'].items()}
    wanted = {name: tuple(numbers.tolist()) for name, (_, numbers) in found.expected.items()}
    for name, shape in wanted.items():
        layer = name.rpartition('.')[0]
        if name.startswith('attention.sizes'):
            i, made = found.inputs, [shapes.get(f'attention.sizes.{n}', ('nothing',))[0] for n in range(3)]
            sizes = [i.encoder_dim, i.decoder_dim, i.attention_dim]
            found.require(shapes.get(name) == shape,
                          f'self.attention made with encoder_dim, decoder_dim, attention_dim = {sizes}',
                          f'it is made with {made}' if 'nothing' not in made else 'it is never made',
                          'the order of the three sizes')
        elif name not in shapes:
            near = difflib.get_close_matches(name, [n for n in shapes if n not in wanted], 1)
            found.wrong(f'a layer self.{layer} with {name} of shape {shape}',
                        f'there is no {name}' + (f', but {near[0]}' if near else ''),
                        'the layer has another name or kind, or is never made')
        found.require(shapes[name] == shape, f'{name} of shape {shape}', f'its shape is {shapes[name]}',
                      f'the sizes that self.{layer} is made with: which goes in, which comes out?')
    found = lab(f'{kind}_layers', f'{CLASS[kind]}.__init__')
    found.same(*(name for name in found.expected if name != 'dropout'), cause='the layer is of another kind')
    if kind != 'attention':
        kept = found['dropout'][found['dropout'] != 0]
        share = 1 - 1 / kept.mean() if kept.size else 1.0
        found.require(abs(share - DROPOUT) < 1e-4 and abs((found['dropout'] == 0).mean() - DROPOUT) < 0.1,
                      f'self.dropout = nn.Dropout with probability {DROPOUT}', f'its probability is {share:.3g}',
                      'hand the parameter dropout on to nn.Dropout')


def check_dropout(lab, kind):
    """Dropout is on h before fc and nowhere else, and only in training (here it drops everything)."""
    found = lab(f'{kind}_dropout', f'{CLASS[kind]}.one_step')
    found.same('predictions', 'h', 'c', shape='batch_size, ...', cause='' if is_wrong(lab, kind) else
               'dropout must be off in eval(): use self.dropout, or F.dropout with training=self.training')
    found.same('predictions in training', shape='batch_size, vocab_size',
               cause='dropout comes right before fc: fc(dropout(h)); when all is dropped, fc.bias is left')
    found.same('h in training', 'c in training', 'h once more', 'c once more', shape='batch_size, decoder_dim',
               cause='only what goes into fc is dropped; the h and c of the next step stay whole')
    found, patterns = lab(f'{kind}_half', f'{CLASS[kind]}.one_step'), []
    for call in ('', ' once more'):
        h, scores = found[f'h{call}'], found[f'predictions{call}']
        found.require(scores.shape[1] > h.shape[1], 'predictions for each word', f'their shape is {scores.shape}', '')
        times = dropped(found.reply, call)
        halved = (np.abs(times) < 1e-4) | (np.abs(times - 2) < 1e-3)
        found.require(halved.all() and 0 < times.mean() < 2, 'a part of h dropped and the rest doubled before fc, with '
                      'dropout=0.5', 'what goes into fc is not 0 or 2 times h', 'dropout more than once, or h rescaled')
        patterns.append(times > 1)
    found.require((patterns[0] != patterns[1]).any(), 'other entries of h dropped at each call', 'they are the same',
                  'a random generator that is seeded again')


def is_wrong(lab, kind):
    """Whether one step is wrong already where nothing is dropped."""
    found = lab(f'{kind}_step', '')
    return not same(found['predictions'], found.expected['predictions'][1])


def check_gradients(found):
    """What came out can be traced back to every input and layer."""
    for name in (name for name in found.expected if name.startswith('gradient of')):
        expected = found.expected[name][1]
        if name not in found.reply['arrays'] and not found.errors:
            found.wrong(f'a {name}', 'there is no such layer', 'see test_layers')
        found.require(found[name].any() or np.abs(expected).max() < 0.01 * found.scale(name), f'a {name}', 'it is zero',
                      'the value is computed without it, or .detach(), .data, .item() or no_grad cut it off')
        found.same(name, cause='the value is computed in another way than the TODO says')


def check_speed(found):
    """Compared with plain matrix products of about the same sizes."""
    found.same(*found.expected, cause='the result is wrong, however fast')
    most = SLOWEST[found.name.partition('_')[0]]
    if found.slowness > most:
        found.wrong(f'at most {most} times the time of the matrix products in it',
                    f'it takes {found.slowness:.0f} times as long',
                    'a Python loop over captions or pixels: work on the whole batch at once', slow=True)


# --- forward of both decoders (TODO 2 and TODO 5) ---


def ask(lab, kind, what='forward', **options):
    return lab(f'{kind}_{what}', f'{CLASS[kind]}.forward', **options)


def check_shapes_and_order(lab, kind):
    found = ask(lab, kind)
    lengths = sorted((length - 1 for length in found.inputs.lengths), reverse=True)
    found.require(found['decode_lengths'].tolist() == lengths,
                  f'decode_lengths {lengths} (caption lengths less 1, longest first)',
                  f'they are {found["decode_lengths"].tolist()}', '<end> is never read: one step less; sort descending')
    tokens, all_lengths = found.inputs.captions()
    order = found['sort_ind']
    found.require(order.dtype == np.int64 and sorted(order.flatten().tolist()) == list(range(len(tokens))),
                  f'sort_ind to hold each of 0 ... {len(tokens) - 1} once', f'it is {order.flatten().tolist()[:9]}',
                  'return the indices that the sort gave you')
    found.require(order.ndim == 1, f'sort_ind of shape {(len(tokens),)}', f'its shape is {order.shape}', '')
    sorted_lengths = (all_lengths[order, 0] - 1).tolist()
    found.require(sorted_lengths == lengths, 'sort_ind to put the longest caption first',
                  f'it puts captions of {sorted_lengths} steps in this order',
                  'return the indices that the sort gave you')
    captions = found['encoded_captions']
    found.require(captions.shape == tokens.shape and (captions == tokens[order]).all(),
                  'encoded_captions, (batch_size, max_caption_length), to be the captions in the order of sort_ind',
                  'they are others', 'return the captions reordered by sort_ind, whole, with <start> and padding')
    size = (found.inputs.batch, lengths[0], found.inputs.vocab_size)
    found.require(found['predictions'].shape == size,
                  f'predictions of shape {size} = (batch_size, max(decode_lengths), vocab_size)',
                  f'their shape is {found["predictions"].shape}', 'the sizes of the zeros that you fill')


def check_predictions(lab, kind):
    """The same as one_step, repeated, caption by caption; zero past a caption's end."""
    found = ask(lab, kind)
    predictions = found['predictions']
    for i, length in enumerate(found.inputs.lengths):
        if predictions.shape == found.expected['predictions'][0]:
            past = abs(predictions[i, length - 1:]).max(initial=0)
            found.require(past == 0, f'zero past the end of caption {i} ({length - 1} steps)',
                          f'there are numbers up to {past:.3g}',
                          'at step t only the captions still running are written')
    found.same('predictions', shape='batch_size, max(decode_lengths), vocab_size',
               cause='at step t: embeddings of word t, the states of step t - 1, the first n rows of everything')
    stubs, _, main = EARLIER[lab.todo]
    with_stubs = ask(lab, kind, stubs=stubs) if lab.subject.works(main, stubs) else found  # these do not drop anything
    with_stubs.same('predictions in training', shape='batch_size, max(decode_lengths), vocab_size',
                    cause='dropout is in one_step, before fc, and nowhere else')
    found.same('predictions once more', cause='forward changes encoder_out, the captions or their lengths in place, or '
                                              'leaves something behind: work on copies')


def check_no_later_word_is_seen(lab, kind):
    """Change word t: the predictions before t stay, those from t on move."""
    usual, found = ask(lab, kind), ask(lab, kind, 'time')
    lengths, before = found.inputs.lengths, usual['predictions']
    for t in range(max(lengths) - 1):
        after = found[f'predictions, word {t} changed']
        if after.shape == before.shape:
            moved = np.abs(after - before).max(axis=2) > 1e-4 * np.abs(before).max()
            for i, length in enumerate(lengths):
                early = [s for s in range(min(t, length - 1)) if moved[i, s]]
                found.require(not early, f'prediction {early[:1]} to know words 0 to {early[0] if early else 0} only',
                              f'it changes with word {t}', 'word t is read at step t, not earlier')
                found.require(t >= length - 1 or moved[i, t], f'prediction {t} to depend on word {t}', 'it does not',
                              'step t reads the true word t, and h and c carry it on')
        found.same(f'predictions, word {t} changed', cause='step t reads the true word t')


def check_captions_do_not_touch_each_other(lab, kind):
    found = ask(lab, kind)
    usual = same(found['predictions'], found.expected['predictions'][1])
    for name in (' in another order', ' of the first caption alone', ' padded with another word',
                 ' padded to the longest', ' with pixels in a row', ' with more cells'):
        for what in ('predictions', 'alphas')[:1 + (kind == 'attentive')]:
            found.same(what + name, cause=(
                'the result of a caption must not depend on its place, its padding or its neighbours' if usual else
                'forward is wrong in the usual case already: see test_predictions'))


def check_works_in_training_and_beam_search(lab, kind):
    """A second batch in training, the state after it, and the same words one by one."""
    found = ask(lab, kind)
    found.same('predictions in training once more', 'predictions after training',
               cause='a call of forward in training leaves something behind: self.eval(), statistics, a changed tensor')
    found.same('predictions word by word', cause='training reads other words or states than beam search does')


def check_device(lab, kind):
    """What is made must lie where encoder_out lies. Without a GPU this cannot be computed: no points."""
    found = ask(lab, kind)
    made = found['made on the CPU']
    names = [name for name, on_cpu in zip(('predictions', '', '', 'alphas'), made, strict=False) if name and on_cpu]
    found.require(not names, 'tensors that lie where encoder_out lies', f'{" and ".join(names)} always lie on the CPU',
                  'give device=encoder_out.device to torch.zeros')

