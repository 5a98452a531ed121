"""TODO 5: ``DecoderWithAttention.forward``, a whole batch with teacher forcing."""

import checks
from checking import EARLIER, judge

KIND = 'attentive'


def test_shapes_and_order(lab):
    checks.check_shapes_and_order(lab, KIND)


def test_predictions(lab):
    checks.check_predictions(lab, KIND)


def test_alphas(lab):
    """The weights of every step that was taken, zero past a caption's end."""
    answer = checks.ask(lab, KIND)
    checks.check_where_it_is_zero(answer, 'alphas')
    answer.same('alphas', shape='batch_size, max(decode_lengths), num_pixels',
                rule='the alpha of one_step belongs at [:n, t], as the predictions do, and zeros past the end')
    checks.ask(lab, KIND, 'batch').same('alphas of large sizes', cause='it works for few captions or cells only')


def test_no_later_word_is_seen(lab):
    checks.check_no_later_word_is_seen(lab, KIND)


def test_captions_do_not_touch_each_other(lab):
    checks.check_captions_do_not_touch_each_other(lab, KIND)


def test_works_in_training_and_beam_search(lab):
    checks.check_works_in_training_and_beam_search(lab, KIND)


def test_gradients(lab):
    checks.check_gradients(checks.ask(lab, KIND))
    checks.check_gradients(checks.ask(lab, KIND, 'training'))


def test_device(lab):
    checks.check_device(lab, KIND)


def test_speed(lab):
    """Of TODO 5 alone where the attention is too slow."""
    stubs, *_ = EARLIER[lab.todo]
    attention = {verdict.test: verdict.outcome for verdict in judge(3, lab.subject)}
    checks.check_speed(checks.ask(lab, KIND, 'speed', stubs=None if attention['test_speed'] == 'passed' else stubs))
