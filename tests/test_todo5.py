"""TODO 5: ``DecoderWithAttention.forward``, a whole batch with teacher forcing."""

import checks

KIND = 'attentive'


def test_shapes_and_order(lab):
    checks.check_shapes_and_order(lab, KIND)


def test_predictions(lab):
    checks.check_predictions(lab, KIND)


def test_alphas(lab):
    """The weights of every step that was taken, zero past a caption's end."""
    checks.ask(lab, KIND).same('alphas', shape='batch_size, max(decode_lengths), num_pixels',
                               cause='keep the alpha of one_step at [:n, t], beside the predictions')


def test_no_later_word_is_seen(lab):
    checks.check_no_later_word_is_seen(lab, KIND)


def test_captions_do_not_touch_each_other(lab):
    checks.check_captions_do_not_touch_each_other(lab, KIND)


def test_works_in_training_and_beam_search(lab):
    checks.check_works_in_training_and_beam_search(lab, KIND)


def test_gradients(lab):
    checks.check_gradients(checks.ask(lab, KIND))


def test_device(lab):
    checks.check_device(lab, KIND)


def test_speed(lab):
    checks.check_speed(checks.ask(lab, KIND, 'speed'))
