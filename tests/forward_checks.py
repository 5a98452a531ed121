"""Checks of ``forward`` for both decoders (TODO 2 and TODO 5)."""

from checking import SINGLE, same_values
from layer_checks import check_gradients

OWNER = {'plain': 'DecoderWithRNN.forward', 'attentive': 'DecoderWithAttention.forward'}


def ask(lab, kind, probe='forward'):
    return lab(f'{kind}_{probe}', OWNER[kind])


def cause_of(lab, kind, cause):
    """The likely cause of something wrong in a special case: none of its own if the usual case is wrong as well."""
    usual, names = ask(lab, kind), ('predictions', 'alphas')
    right = all(same_values(usual[name], usual.expected[name]) for name in names if name in usual.expected)
    return cause if right else 'forward is wrong in the usual case already: see test_predictions'


def check_shapes_and_order(lab, kind):
    found = ask(lab, kind)
    lengths = sorted((length - 1 for length in found.inputs.lengths), reverse=True)
    found.require(found['decode_lengths'].tolist() == lengths,
                  f'decode_lengths {lengths} (caption lengths less 1, longest first)',
                  f'they are {found["decode_lengths"].tolist()}', '<end> is never read: one step less; sort descending')
    found.require(found['sorted lengths'].tolist() == lengths, 'sort_ind to put the longest caption first',
                  f'it puts captions of {found["sorted lengths"].tolist()} steps in this order',
                  'return the indices that the sort gave you')
    found.same('encoded_captions', shape='batch_size, max_caption_length',
               cause='return the captions reordered by sort_ind, whole, with <start> and padding')
    found.require(found['inputs untouched'], 'encoder_out, captions and lengths to stay as they were',
                  'forward has changed one of them', 'an in-place operation on an input: work on a copy')
    size = (found.inputs.batch, lengths[0], found.inputs.vocab_size)
    found.require(found['predictions'].shape == size,
                  f'predictions of shape {size} = (batch_size, max(decode_lengths), vocab_size)',
                  f'their shape is {found["predictions"].shape}', 'the sizes of the zeros that you fill')


def check_predictions(lab, kind):
    """The same as one_step, repeated, caption by caption; zero past a caption's end."""
    found = ask(lab, kind)
    predictions = found['predictions']
    for i, length in enumerate(found.inputs.lengths):
        if predictions.shape == found.expected['predictions'].shape:
            past = abs(predictions[i, length - 1:]).max(initial=0)
            found.require(past == 0, f'zero past the end of caption {i} ({length - 1} steps)',
                          f'there are numbers up to {past:.3g}',
                          'at step t only the captions still running are written')
    found.same('predictions', shape='batch_size, max(decode_lengths), vocab_size',
               cause='at step t: embeddings of word t, the states of step t - 1, the first n rows of everything')
    found.same('predictions in training', shape='batch_size, max(decode_lengths), vocab_size',
               cause='dropout is in one_step, before fc, and nowhere else')


def check_no_later_word_is_seen(lab, kind):
    """Change word t: the predictions before t stay, those from t on move."""
    found = ask(lab, kind, 'forward_time')
    lengths = found.inputs.lengths
    print('a prediction has noticed a change if it moves by more than 1e-9')
    for t in range(max(lengths) - 1):
        for i, length in enumerate(lengths):
            moved = found[f'word {t}'][i]
            early = [s for s in range(min(t, length - 1)) if moved[s]]
            found.require(not early, f'prediction {early[:1]} to know words 0 to {early[0] if early else 0} only',
                          f'it changes with word {t}', 'word t is read at step t, not earlier')
            late = [s for s in range(t, length - 1) if not moved[s]]
            found.require(not late, f'predictions from {t} on to depend on word {t}',
                          f'prediction {late[:1]} does not', 'step t reads the true word t, and h and c carry it on')
        found.same(f'after word {t}', shape='length, mixture', cause='step t reads the true word t')


def check_captions_do_not_touch_each_other(lab, kind):
    found = ask(lab, kind, 'forward_batch')
    for name in [name for name in found.expected if name != 'mode']:
        found.same(name, shape='batch_size, steps, vocab_size', cause=cause_of(
            lab, kind, 'the result of a caption must not depend on its place, its padding or its neighbours'))


def check_forward_gradients(lab, kind):
    check_gradients(ask(lab, kind, 'forward_gradient'))


def check_device_and_precision(lab, kind):
    found = ask(lab, kind, 'forward_device')
    found.require(not found['made on the CPU'], 'tensors that lie where encoder_out lies',
                  f'{found["made on the CPU"]} always lie on the CPU', 'give device=encoder_out.device to torch.zeros')
    single = ask(lab, kind, 'forward_single')
    single.require(single['types'] == single.expected['types'], f'for pictures in float32 {single.expected["types"]}',
                   single['types'], 'make the tensors that you fill with the dtype of encoder_out')
    single.same(*[name for name in ('predictions', 'alphas') if name in single.expected], tolerance=SINGLE,
                cause=cause_of(lab, kind, 'in single precision the same must come out'))


def check_learning(lab, kind):
    """150 steps of Adam on the few captions: each is then known by heart."""
    found = ask(lab, kind, 'learning')
    found.same('first losses', tolerance=SINGLE,
               cause=cause_of(lab, kind, 'what is learnt from is not what the TODO says'))
    print('loss below 0.1')
    found.require(found['last loss'] < 0.1, 'a loss below 0.1 on captions learnt by heart',
                  f'it is {found["last loss"]:.3g}', 'a part of the state or of the picture does not get through')
    found.require(found['wrong captions'] == 0, 'greedy decoding to say the captions learnt by heart',
                  f'{found["wrong captions"]} come out differently', 'training reads other words than decoding does')
