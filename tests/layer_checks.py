"""Checks that several TODOs share: layers, dropout, gradients."""

import difflib

from probes import DROPOUT, layer_shapes


def check_layers(found, kind):
    """Every layer that the TODO lists is there, under its name and with its sizes."""
    values = {name: shape for name, shape in found.values.items() if name.partition('.')[2] not in ('', 'p')}
    wanted = layer_shapes(found.inputs, kind)
    for name, shape in wanted.items():
        layer = name.rpartition('.')[0]
        if name not in values:
            near = difflib.get_close_matches(name, [n for n in values if n not in wanted], 1)
            found.wrong(f'a layer self.{layer} with {name} of shape {shape}',
                        f'there is no {name}' + (f', but {near[0]}' if near else ''),
                        'the layer has another name or kind, or is never made')
        here = tuple(map(int, values[name]))
        found.require(here == shape, f'{name} of shape {shape}', f'its shape is {here}',
                      f'the sizes that self.{layer} is made with: which goes in, which comes out?')
    if kind == 'attentive':
        i = found.inputs
        sizes, made = [i.encoder_dim, i.decoder_dim, i.attention_dim], found['attention made with'].tolist()
        found.require(made == sizes, f'self.attention made with encoder_dim, decoder_dim, attention_dim = {sizes}',
                      f'it is made with {made}' if made else 'it is never made', 'the order of the three sizes')
    if kind != 'attention':
        found.require(found['dropout.p'] == DROPOUT, f'self.dropout = nn.Dropout with probability {DROPOUT}',
                      f'its probability is {found["dropout.p"]}' if found['dropout.p'] >= 0 else 'there is none',
                      'hand the parameter dropout on to nn.Dropout')


def check_dropout(found):
    """Dropout is on h before fc and nowhere else, and only in training (here it drops everything)."""
    found.require(found['repeatable in eval()'], 'the same predictions for the same input in eval()',
                  'they change from call to call', 'F.dropout without training=self.training; use self.dropout')
    found.same('predictions in eval()', shape='batch_size, vocab_size', cause='dropout must be off in eval()')
    found.same('predictions in training', shape='batch_size, vocab_size',
               cause='dropout comes right before fc: fc(dropout(h)); when all is dropped, fc.bias is left')
    found.same('h in training', 'c in training', shape='batch_size, decoder_dim',
               cause='only what goes into fc is dropped; the h and c of the next step stay whole')
    found.require(found['0 or 2 times h'], 'a part of h dropped and the rest doubled before fc, with dropout=0.5',
                  'what goes into fc is not 0 or 2 times h', 'dropout more than once, or h rescaled by hand')


def check_gradients(found):
    """What came out can be traced back to every input and layer."""
    for name in (name for name in found.expected if name.startswith('gradient of')):
        found.require(name in found.values, f'a {name}', 'there is no such layer', 'see test_layers')
        found.require(found[name].any() or not found.expected[name].any(), f'a {name}', 'it is zero',
                      'the value is computed without it, or .detach(), .data, .item() or no_grad cut it off')
        found.same(name, shape='length, mixture', cause='the value is computed in another way than the TODO says')
