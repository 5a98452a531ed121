"""The model in the box: ``weights/photos.safetensors`` captions photos in two languages, without data or training.

It is a checkpoint's model in a tenth of the space, and a file that can hold no code. Each row of a matrix, and each
filter of a convolution, is kept in 8 bits, w = s * q with whole numbers q from -127 to 127 and s = max |w| / 127;
vectors stay as they are. ``instructor/pack_photos.py`` writes it.
"""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

PHOTOS = Path(__file__).parents[2] / 'weights' / 'photos.safetensors'
PARTS = 'decoder', 'encoder'
VALUES = ('settings', 'word_map', 'encoder_digest')  # of a checkpoint, as JSON


def unpack(path, device='cpu'):
    """:return: what ``checkpoints.read_checkpoint`` returns, without what only training needs
    :raises ValueError: no such file, a damaged one, or one of another program
    """
    try:
        with safe_open(Path(path), 'pt', str(device)) as file:
            values = {name: json.loads(file.metadata()[name]) for name in VALUES}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f'{path} cannot be read: take it anew from the lab ({error})') from error
    scales = {name.removesuffix('.scale'): tensors.pop(name) for name in list(tensors) if name.endswith('.scale')}
    parts = {part: {} for part in PARTS}
    for name, weight in tensors.items():
        part, _, own = name.partition('.')
        parts[part][own] = weight * scales[name] if name in scales else weight
    return dict(format=4, decoder=parts['decoder'], encoder=parts['encoder'] or None, history=[], **values)
