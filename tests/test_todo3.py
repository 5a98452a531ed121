"""TODO 3: ``Attention``, where to look."""

import numpy as np
from checking import TOLERANCE
from checks import check_gradients, check_layers, check_not_seeded, check_speed, if_usual, takes_keys

FORWARD = 'Attention.forward'


def ask(lab):
    return lab('attention_forward', FORWARD)


def test_layers(lab):
    check_layers(lab, 'attention')


def test_shapes(lab):
    answer = ask(lab)
    for name, shape, meaning in (
            ('alpha', (answer.inputs.batch, answer.inputs.num_pixels), 'batch_size, num_pixels'),
            ('z', (answer.inputs.batch, answer.inputs.encoder_dim), 'batch_size, encoder_dim')):
        answer.require(answer[name].shape == shape, f'{name} of shape {shape} = ({meaning})',
                       f'the shape is {answer[name].shape}', lab.difference_of(answer[name].shape, shape))
    z, pixels = answer['z'], answer.inputs.pixels()
    between = (z >= pixels.min(axis=1) - 1e-4) & (z <= pixels.max(axis=1) + 1e-4)
    answer.require(between.all(), 'z between the smallest and the largest pixel, in each channel', 'it lies outside',
                   rule='z is a weighted mean of encoder_out; no weight is below 0, and over the pixels they sum to 1')
    looks_somewhere(answer)


def other_than_used(answer):
    """The cause of a wrong alpha, where z or one picture alone is right."""
    if answer.is_right('z'):
        return 'z is right, so it was made with the right weights: return these as alpha'
    return 'one picture alone comes out right, so pixels or states of different pictures meet' * answer.is_right(
        'alpha of one picture')


def looks_somewhere(answer):
    answer.require(np.ptp(answer['alpha'], axis=1).max() > 1e-3, 'pixels to get different weights',
                   'all weights are equal', rule='the scores depend on encoder_out')


def test_alpha_sums_to_one_over_the_pixels(lab):
    answer = ask(lab)
    alpha, (batch, pixels) = answer['alpha'], (answer.inputs.batch, answer.inputs.num_pixels)
    answer.require(alpha.shape == (batch, pixels), f'alpha of shape {(batch, pixels)}', f'the shape is {alpha.shape}',
                   'the scores keep a dimension of size 1')
    answer.require((alpha >= 0).all(), 'alpha >= 0', f'its smallest entry is {alpha.min():.3g}',
                   other_than_used(answer) or 'there is no softmax over the scores: exp makes them positive')
    sums = alpha.sum(axis=1)
    over_batch = np.allclose(alpha.sum(axis=0), 1)
    answer.require(np.abs(sums - 1).max() <= TOLERANCE, f'alpha to sum to 1 over the {pixels} pixels of each picture',
                   'it sums to 1 over the batch' if over_batch else
                   f'the sums are {", ".join(f"{value:.6g}" for value in sums)}',
                   'the weights are rounded, or in half precision' if np.abs(sums - 1).max() < 0.01 else
                   f'all weights are {sums[0]:.3g} times what the softmax gives' if np.ptp(sums) < TOLERANCE else
                   other_than_used(answer),
                   'the softmax is over the pixels of a picture, dim 1')
    looks_somewhere(answer)


def test_alpha_follows_the_formula(lab):
    """alpha = softmax(att(relu(encoder_att(a) + decoder_att(h)))), eqs. 4 and 5."""
    answer = ask(lab)
    answer.same('alpha', shape='batch_size, num_pixels', cause=other_than_used(answer),
                rule='alpha is the softmax of the scores (eq. 5), and each score is att of the ReLU of key plus query '
                     '(eq. 4), that is encoder_att(encoder_out) plus decoder_att(decoder_hidden)')
    answer.same('alpha in training', 'alpha once more', rule='alpha is the same in training, and at every call')
    check_not_seeded(answer)
    outputs = ['alpha', 'z'] if answer.is_right('z') else ['alpha']  # of z test_z_is_the_weighted_sum says more
    if takes_keys(answer):
        answer.same(*(f'{name} with keys' for name in outputs),
                    rule='keys that are handed in are encoder_att(encoder_out), ready to use')
        answer.same(*(f'{name} with keys once more' for name in outputs), rule='keys that come in do not change')
    lab('attention_large', FORWARD).same(*(f'{name} of large sizes' for name in outputs),
                                         cause='it works for small sizes or scores only')


def test_z_is_the_weighted_sum(lab):
    """z = sum over the pixels of alpha_i a_i, whatever your alpha is."""
    answer = ask(lab)
    alpha, pictures = answer['alpha'], answer.inputs.pixels()
    shape = answer.inputs.batch, answer.inputs.encoder_dim
    answer.require(alpha.shape == pictures.shape[:2], f'alpha of shape {pictures.shape[:2]}',
                   f'the shape is {alpha.shape}', rule='the scores have no last dimension of size 1')
    answer.require(answer['z'].shape == shape, f'z of shape {shape} = (batch_size, encoder_dim)',
                   f'the shape is {answer["z"].shape}', rule='the sum is over the pixels, dim 1')
    weighted = np.einsum('bp,bpe->be', alpha, pictures)
    rounding = 1e-6 * np.einsum('bp,bpe->be', np.abs(alpha), np.abs(pictures))
    answer.require((np.abs(answer['z'] - weighted) <= TOLERANCE * (1 + np.abs(weighted)) + rounding).all(),
                   'z = sum over the pixels of alpha * encoder_out',
                   f'z[0, 0] is {answer["z"][0, 0]:.5g} but the sum is {weighted[0, 0]:.5g}',
                   rule='encoder_out itself is weighted by the alpha that you return, and summed, not averaged, over '
                        'dim 1, and nothing comes after that')
    looks_somewhere(answer)


def test_pixels_may_come_in_any_order(lab):
    answer = ask(lab)
    for call, cause in ((' with pixels in another order', ''), (' of one picture', ''), (' with equal pixels', ''),
                        (' with strong pixels', 'large scores are cut off or rounded'),
                        (' with more cells', 'a number of cells is limited, or cells of zeros are left out'),
                        (' once more', 'a call leaves something behind for the next one'),
                        (' in training', 'training makes a difference here')):
        answer.same(f'z{call}', f'alpha{call}', **if_usual(answer, ['z', 'alpha'], cause),
                    rule='each pixel is scored on its own, each picture for itself')


def test_gradients(lab):
    check_gradients(ask(lab))


def test_speed(lab):
    check_speed(lab('attention_speed', FORWARD))
