"""The metrics of the COCO caption evaluation, by pycocoevalcap, and files that its official scorers read.

An extra: ``pip install ".[metrics]"``. METEOR and SPICE run in Java; SPICE also fetches a parser of 400 MB the first
time. What cannot be had is left out of the scores, and one line says why.
"""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path, PurePath

from utils import atomic_path

NAMES = ('BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'METEOR', 'ROUGE-L', 'CIDEr', 'SPICE')


def coco_scores(references, captions, spice=False, say=print):
    """Score one caption per image. Captions are taken as they are split: no tokenizer comes in between.

    :param references: per image a list of reference captions, each a list of words
    :param captions: per image a list of words
    :param spice: SPICE as well, to three decimals; it parses every caption and reference, which takes its time
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
        say('METEOR, ROUGE-L, CIDEr and SPICE are left out: they come with pip install ".[metrics]"')
        return {}
    truth = {i: [on_one_line(words) for words in those] for i, those in enumerate(references)}
    found = {i: [on_one_line(words)] for i, words in enumerate(captions)}
    bleu, _ = Bleu(4).compute_score(truth, found, verbose=0)
    scores = {f'BLEU-{n}': bleu[n - 1] for n in (1, 2, 3, 4)}
    scores |= {'ROUGE-L': Rouge().compute_score(truth, found)[0], 'CIDEr': Cider().compute_score(truth, found)[0]}
    in_java = dict(METEOR=_meteor, SPICE=_spice) if spice else dict(METEOR=_meteor)
    for name, score in in_java.items():
        if not shutil.which('java'):
            say(f'{name} is left out: it runs in Java, which is not here')
            continue
        try:
            scores[name] = score(truth, found)
        except Exception as error:  # its Java, its download, its temporary files: all in ways of their own
            say(f'{name} is left out: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}')
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


def _spice(truth, found):
    """SPICE's program as pycocoevalcap has it, but without its cache and its file of scores.

    Both need what newer Javas refuse (seen with 17: the cache looks into private fields of Java's own classes, the file
    is written by a JavaScript that Java no longer has). The mean is printed as well, which needs neither.
    """
    from pycocoevalcap.spice import spice
    spice.get_stanford_models()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'captions.json'
        path.write_text(json.dumps([dict(image_id=i, test=found[i][0], refs=truth[i]) for i in truth]))
        run = subprocess.run(['java', '-Xmx8G', '-Duser.language=en', '-jar', spice.SPICE_JAR, str(path)],
                             cwd=Path(spice.__file__).parent, capture_output=True, text=True)
    score = re.search(r'f-score:\s*(\S+) \(SPICE metric\)', run.stdout)
    if run.returncode or not score:
        lines = [line.strip() for line in (run.stderr + run.stdout).splitlines()]
        raise RuntimeError(next((line for line in lines if re.search('error:|exception', line, re.IGNORECASE)),
                                f'java ended with {run.returncode}'))
    return float(score[1])


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
