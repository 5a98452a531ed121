"""METEOR and ROUGE-L of the COCO caption evaluation, by pycocoevalcap.

They need ``pip install ".[metrics]"``, and METEOR needs Java. A metric that is not there is left out, with a message,
and so is METEOR for Chinese.
"""

import os
import re
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path


def coco_scores(references, captions, log=print):
    """Score one caption per image. The words are taken as they are, without COCO's tokenizer.

    :param references: per image a list of reference captions, each a list of words
    :param captions: per image a list of words
    :param log: gets a message for each metric that is left out
    :return: dict name -> score, 0 to 1
    """
    try:
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        log('METEOR and ROUGE-L are left out: they come with pip install ".[metrics]"')
        return {}
    gts = {i: [_text(words) for words in each] for i, each in enumerate(references)}
    res = {i: [_text(words)] for i, words in enumerate(captions)}
    scores = {'ROUGE-L': float(Rouge().compute_score(gts, res)[0])}
    if re.search('[\u4e00-\u9fff]', ''.join(text for text, in res.values())):
        log('METEOR is left out for Chinese: its word stems, synonyms and paraphrases are English')
        return scores
    try:
        scores['METEOR'] = _meteor(gts, res)
    except (OSError, RuntimeError, ValueError) as error:  # there is no Java, or it fails in one of many ways
        log(f'METEOR is left out, which needs Java: {error}')
    return scores


def _text(words):
    """A caption as the scorers take it: one line, one blank between words, whatever a word holds."""
    return ' '.join(' '.join(words).split())


def _meteor(gts, res):
    """METEOR 1.5, in Java, of two files: a caption per line, and as many references for each, some of them repeated.
    It takes the best reference, so repeating one changes nothing.
    """
    most = max(map(len, gts.values()))
    files = dict(captions=[res[i][0] for i in res],
                 references=[text for i in res for text in (gts[i] * most)[:most]])
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in files.items():
            Path(folder, name).write_text('\n'.join(lines) + '\n', encoding='utf-8')
        # -a: by itself METEOR encodes the path of this file twice, and finds it in a folder of plain letters only.
        # LC_ALL: Java reads paths in the encoding of the locale.
        done = subprocess.run(
            ['java', '-Xmx2G', '-jar', 'meteor-1.5.jar', *(Path(folder, name) for name in files), '-r', str(most),
             '-l', 'en', '-norm', '-q', '-a', 'data/paraphrase-en.gz'],
            cwd=Path(find_spec('pycocoevalcap').submodule_search_locations[0], 'meteor'),
            env={**os.environ, 'LC_ALL': 'C.UTF-8'}, capture_output=True, encoding='utf-8', errors='replace')
    if done.returncode:
        raise RuntimeError(f'Java ended with {done.returncode}: {(done.stderr or done.stdout)[:300]}')
    return float(done.stdout)
