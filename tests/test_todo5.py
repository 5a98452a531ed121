"""TODO 5: ``DecoderWithAttention.forward``, a whole batch with teacher forcing."""

import forward_checks as checks
from speed_check import check_speed

KIND = 'attentive'


def test_shapes_and_order(lab):
    checks.check_shapes_and_order(lab, KIND)


def test_predictions(lab):
    checks.check_predictions(lab, KIND)


def test_alphas(lab):
    """The weights of every step that was taken, zero past a caption's end."""
    found = checks.ask(lab, KIND)
    found.same('alphas', shape='batch_size, max(decode_lengths), num_pixels',
               cause='keep the alpha of one_step at [:n, t], beside the predictions')


def test_no_later_word_is_seen(lab):
    checks.check_no_later_word_is_seen(lab, KIND)


def test_captions_do_not_touch_each_other(lab):
    checks.check_captions_do_not_touch_each_other(lab, KIND)


def test_gradients(lab):
    checks.check_forward_gradients(lab, KIND)


def test_device_and_precision(lab):
    checks.check_device_and_precision(lab, KIND)


def test_learns_a_few_captions_by_heart(lab):
    checks.check_learning(lab, KIND)


def test_speed(lab):
    check_speed(checks.ask(lab, KIND, 'speed'))
