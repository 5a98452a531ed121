"""The metrics of the COCO caption evaluation, by pycocoevalcap, and files that its official scorers read.

An extra: ``pip install ".[metrics]"``. METEOR runs in Java. What cannot be had is left out of the scores, and one line
says why. For SPICE, give the files of :func:`write_coco_files` to pycocoevalcap's ``COCOEvalCap``.
"""

import json
import re
import shutil
from pathlib import PurePath

from utils import atomic_path

NAMES = ('BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'METEOR', 'ROUGE-L', 'CIDEr')


def coco_scores(references, captions, say=print):
    """Score one caption per image. Captions are taken as they are split: no tokenizer comes in between.

    :param references: per image a list of reference captions, each a list of words
    :param captions: per image a list of words
    :param say: what is left out, and why, is said by this function
    :return: dict name -> score, 0 to 1 (CIDEr, which is CIDEr-D: 0 to 10), in the order of ``NAMES``
    :raises ValueError: not one caption per image, or an image without references
    """
    if len(references) != len(captions) or not captions:
        raise ValueError(f'{len(captions)} captions for {len(references)} images: there must be one for each')
    if not all(references):
        raise ValueError(f'image {[bool(those) for those in references].index(False)} has no reference caption: it '
                         'cannot be scored')
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        say('METEOR, ROUGE-L and CIDEr are left out: they come with pip install ".[metrics]"')
        return {}
    truth = {i: [on_one_line(words) for words in those] for i, those in enumerate(references)}
    found = {i: [on_one_line(words)] for i, words in enumerate(captions)}
    bleu, _ = Bleu(4).compute_score(truth, found, verbose=0)
    scores = {f'BLEU-{n}': bleu[n - 1] for n in (1, 2, 3, 4)}
    scores |= {'ROUGE-L': Rouge().compute_score(truth, found)[0], 'CIDEr': Cider().compute_score(truth, found)[0]}
    if not shutil.which('java'):
        say('METEOR is left out: it runs in Java, which is not here')
    else:
        try:
            scores['METEOR'] = _meteor(truth, found)
        except Exception as error:  # its Java and its temporary files fail in ways of their own
            say(f'METEOR is left out: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}')
    return {name: float(scores[name]) for name in NAMES if name in scores}


def on_one_line(words):
    """A caption as the scorers take it: they read a line for each, with ``|||`` between its parts."""
    return ' '.join(' '.join(words).replace('|||', ' ').split())


def _meteor(truth, found):
    from pycocoevalcap.meteor.meteor import Meteor
    meteor = Meteor()
    try:
        return meteor.compute_score(truth, found)[0]
    finally:
        if meteor.lock.locked():  # it failed: its __del__ would wait for this lock for ever
            meteor.lock.release()


def image_ids(names):
    """COCO's numbers of images: the last number in each file name if these are all different, else 0, 1, 2, ..."""
    numbers = [re.findall(r'\d+', PurePath(name).stem) for name in names]
    ids = [int(found[-1]) if found else None for found in numbers]
    return ids if None not in ids and len(set(ids)) == len(ids) else list(range(len(names)))


def write_coco_files(results_path, captions, annotations_path=None):
    """Write captions in COCO's results format, and the references in COCO's annotation format.

    Such files are what the COCO server and ``pycocoevalcap`` read:
    ``COCO(annotations_path).loadRes(results_path)``.

    :param captions: as :func:`evaluate.caption_split` gives them: dicts with name, caption, references
    :param annotations_path: where the references go; None: nowhere
    """
    ids = image_ids([caption['name'] for caption in captions])
    results = [dict(image_id=number, caption=' '.join(caption['caption']))
               for number, caption in zip(ids, captions, strict=True)]
    files = {results_path: results}
    if annotations_path:
        annotations = [dict(image_id=number, caption=' '.join(words))
                       for number, caption in zip(ids, captions, strict=True) for words in caption['references']]
        files[annotations_path] = dict(
            info={}, licenses=[], type='captions',
            images=[dict(id=number, file_name=caption['name']) for number, caption in zip(ids, captions, strict=True)],
            annotations=[dict(annotation, id=k) for k, annotation in enumerate(annotations)])
    for path, content in files.items():
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content))
