"""The metrics of the COCO caption evaluation, by pycocoevalcap, and the files that its scorers read.

They need ``pip install ".[metrics]"``, and METEOR needs Java. A metric that is not there is left out, with a message.
For SPICE, give the files of :func:`write_coco_files` to pycocoevalcap's ``COCOEvalCap``.
"""

import json
import re
import shutil
from pathlib import PurePath

from utils import atomic_path

NAMES = ('BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'METEOR', 'ROUGE-L', 'CIDEr')


def coco_scores(references, captions, log=print):
    """Score one caption per image. The words are taken as they are, without COCO's tokenizer.

    :param references: per image a list of reference captions, each a list of words
    :param captions: per image a list of words
    :param log: gets a message for each metric that is left out
    :return: dict name -> score, 0 to 1 (CIDEr, which is CIDEr-D: 0 to 10), in the order of ``NAMES``
    """
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        log('METEOR, ROUGE-L and CIDEr are left out: they come with pip install ".[metrics]"')
        return {}
    gts = {i: [' '.join(words) for words in each] for i, each in enumerate(references)}
    res = {i: [' '.join(words)] for i, words in enumerate(captions)}
    bleu, _ = Bleu(4).compute_score(gts, res, verbose=0)
    scores = {f'BLEU-{n}': bleu[n - 1] for n in (1, 2, 3, 4)}
    scores |= {'ROUGE-L': Rouge().compute_score(gts, res)[0], 'CIDEr': Cider().compute_score(gts, res)[0]}
    if not shutil.which('java'):
        log('METEOR is left out: it needs Java')
    else:
        try:
            scores['METEOR'] = _meteor(gts, res)
        except Exception as error:  # Java fails in many ways
            log(f'METEOR is left out: {type(error).__name__}: {error}')
    return {name: float(scores[name]) for name in NAMES if name in scores}


def _meteor(gts, res):
    from pycocoevalcap.meteor.meteor import Meteor
    meteor = Meteor()
    try:
        return meteor.compute_score(gts, res)[0]
    finally:
        if meteor.lock.locked():  # after an error: its __del__ would wait for this lock for ever
            meteor.lock.release()


def image_ids(names):
    """COCO's image ids: the last number in each file name if these are all different, else 0, 1, 2, ..."""
    numbers = [re.findall(r'\d+', PurePath(name).stem) for name in names]
    ids = {int(of_name[-1]) for of_name in numbers if of_name}
    return [int(of_name[-1]) for of_name in numbers] if len(ids) == len(names) else list(range(len(names)))


def write_coco_files(results_path, captions, annotations_path):
    """Write captions in COCO's results format, and references in COCO's annotation format.

    The COCO server and ``pycocoevalcap`` read them: ``COCO(annotations_path).loadRes(results_path)``.

    :param captions: dicts of :func:`evaluate.caption_split`, with name, caption, references
    """
    ids = image_ids([caption['name'] for caption in captions])
    results = [dict(image_id=number, caption=' '.join(caption['caption']))
               for number, caption in zip(ids, captions, strict=True)]
    references = [(number, words) for number, caption in zip(ids, captions, strict=True)
                  for words in caption['references']]
    annotations = dict(
        info={}, licenses=[], type='captions',
        images=[dict(id=number, file_name=caption['name']) for number, caption in zip(ids, captions, strict=True)],
        annotations=[dict(id=k, image_id=number, caption=' '.join(words))
                     for k, (number, words) in enumerate(references)])
    for path, content in ((results_path, results), (annotations_path, annotations)):
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(content))
