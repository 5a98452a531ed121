"""TODO 5: ``DecoderWithAttention.forward``, a whole batch with teacher forcing."""

import checks
from checking import EARLIER

KIND = 'attentive'


def test_shapes_and_order(lab):
    checks.check_shapes_and_order(lab, KIND)


def test_predictions(lab):
    checks.check_predictions(lab, KIND)


def test_alphas(lab):
    """The weights of every step that was taken, zero past a caption's end."""
    answer = checks.ask(lab, KIND)
    checks.check_zero_past_the_end(answer, 'alphas')
    answer.same('alphas', shape='batch_size, max(decode_lengths), num_pixels',
                rule='the alpha of one_step stands at [:n, t], as the predictions do, and zeros past the end')
    checks.ask(lab, KIND, 'batch').same('alphas of large sizes', cause='only small numbers of captions or cells work')


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
    stubs, *_ = EARLIER[lab.todo]
    checks.check_speed(checks.ask(lab, KIND, 'speed', stubs=None if lab.subject.fast(3) else stubs))
