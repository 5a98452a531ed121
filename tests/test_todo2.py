"""TODO 2: ``DecoderWithRNN.forward``, a whole batch with teacher forcing."""

import checks

KIND = 'plain'


def test_shapes_and_order(lab):
    checks.check_shapes_and_order(lab, KIND)


def test_predictions(lab):
    checks.check_predictions(lab, KIND)


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
    checks.check_speed(checks.ask(lab, KIND, 'speed'))
