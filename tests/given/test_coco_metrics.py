"""The field's metrics against published figures, and files that the official tools read."""

import builtins
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.error import URLError

import pytest

import coco_metrics
from cider import CiderD
from coco_metrics import NAMES, coco_scores, image_ids, write_coco_files

REFERENCES = [['a red star and a moon'.split(), 'one star'.split()], ['two blue moons'.split()],
              ['a green square left of a star'.split()] * 3]
CAPTIONS = ['a red star'.split(), 'two red moons'.split(), 'a green square left of a moon'.split()]


def test_published_figures(shared_data):
    pytest.importorskip('pycocoevalcap')
    folder = shared_data / 'metrics'
    expected = json.loads((folder / 'expected.json').read_text())
    captions, first, second = ([line.split() for line in (folder / name).open()]
                               for name in ('hyp.txt', 'ref1.txt', 'ref2.txt'))
    scores = coco_scores([list(pair) for pair in zip(first, second, strict=True)], captions)
    names = [name for name in NAMES if name in expected and (name != 'METEOR' or shutil.which('java'))]
    assert {'BLEU-4', 'ROUGE-L', 'CIDEr'} <= set(names)
    assert [name for name in scores if name != 'SPICE'] == names
    for name in names:
        assert scores[name] == pytest.approx(expected[name], abs=1e-6), name


def test_cider_is_the_cider_of_training():
    pytest.importorskip('pycocoevalcap')
    scores = coco_scores(REFERENCES, CAPTIONS)
    assert scores['CIDEr'] == pytest.approx(CiderD(REFERENCES).score(CAPTIONS))


def test_a_java_that_fails_is_said(tmp_path):
    """And nothing waits for it, at the end of the program neither: pycocoevalcap holds a lock then."""
    pytest.importorskip('pycocoevalcap')
    (tmp_path / 'java').write_text('#!/bin/sh\necho Unable to locate a Java Runtime >&2\nexit 1\n')
    (tmp_path / 'java').chmod(0o755)
    script = 'from coco_metrics import coco_scores; print(list(coco_scores([[["a"]]], [["a"]])))'
    path = os.pathsep.join([str(tmp_path), os.environ['PATH']])
    run = subprocess.run([sys.executable, '-c', script], cwd=Path(coco_metrics.__file__).parent, capture_output=True,
                         text=True, timeout=60, env={**os.environ, 'PATH': path})
    assert run.returncode == 0 and 'METEOR is left out: ' in run.stdout
    assert "'BLEU-4', 'ROUGE-L', 'CIDEr']" in run.stdout


@pytest.mark.skipif(not shutil.which('java'), reason='needs Java')
def test_words_that_hold_what_divides_lines():
    pytest.importorskip('pycocoevalcap')
    strange = [[['a', 'red\nstar', '|||', 'here']], [['two', 'moons']]]
    plain = [[['a', 'red', 'star', 'here']], [['two', 'moons']]]
    captions = [['red', 'star'], ['two\r', 'stars']]
    said = []
    assert coco_scores(strange, captions, say=said.append) == pytest.approx(
        coco_scores(plain, [['red', 'star'], ['two', 'stars']]))
    assert not said


def test_an_image_without_references():
    with pytest.raises(ValueError, match='image 1 has no reference caption: it cannot be scored'):
        coco_scores([[['a']], []], [['a'], ['b']])


def test_what_cannot_be_had_is_said(monkeypatch):
    pytest.importorskip('pycocoevalcap')
    said = []
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    scores = coco_scores(REFERENCES, CAPTIONS, spice=True, say=said.append)
    assert list(scores) == ['BLEU-1', 'BLEU-2', 'BLEU-3', 'BLEU-4', 'ROUGE-L', 'CIDEr']
    assert said == [f'{name} is left out: it runs in Java, which is not here' for name in ('METEOR', 'SPICE')]


PARSER = {  # in place of SPICE's parser, a download of 400 MB: every word is a noun, so an object of the scene
    'ling.IndexedWord': """public class IndexedWord {
        String word;
        public IndexedWord(String word) { this.word = word; }
        public String lemma() { return word; }
        public String value() { return word; }
        public int index() { return 0; } }""",
    'ling.CoreAnnotations': 'public class CoreAnnotations { public static class SentencesAnnotation { } }',
    'util.CoreMap': 'public interface CoreMap { Object get(Class key); }',
    'util.MapFactory': 'public class MapFactory { public static MapFactory hashMapFactory() { return null; } }',
    'graph.DirectedMultiGraph': """public class DirectedMultiGraph<V, E> {
        java.util.Set<V> vertices = new java.util.LinkedHashSet<>();
        public DirectedMultiGraph(edu.stanford.nlp.util.MapFactory a, edu.stanford.nlp.util.MapFactory b) { }
        public void add(V source, V target, E edge) { }
        public boolean addVertex(V vertex) { return vertices.add(vertex); }
        public java.util.List<E> getAllEdges() { return new java.util.ArrayList<>(); }
        public java.util.Set<V> getAllVertices() { return vertices; } }""",
    'pipeline.Annotation': """public class Annotation implements edu.stanford.nlp.util.CoreMap {
        String text;
        public Annotation(String text) { this.text = text; }
        public Object get(Class key) {
            if (key == edu.stanford.nlp.ling.CoreAnnotations.SentencesAnnotation.class)
                return java.util.Collections.singletonList(this);
            return new edu.stanford.nlp.semgraph.SemanticGraph(text.split(" ")); } }""",
    'pipeline.StanfordCoreNLP': """public class StanfordCoreNLP {
        public StanfordCoreNLP(java.util.Properties settings) { }
        public void annotate(Iterable<Annotation> captions) { } }""",
    'trees.GrammaticalRelation': 'public class GrammaticalRelation { }',
    'trees.UniversalEnglishGrammaticalRelations': """public class UniversalEnglishGrammaticalRelations {
        public static GrammaticalRelation CASE_MARKER, MULTI_WORD_EXPRESSION, NUMERIC_MODIFIER,
            PHRASAL_VERB_PARTICLE; }""",
    'scenegraph.SemanticGraphEnhancer': """public class SemanticGraphEnhancer {
        public static edu.stanford.nlp.trees.GrammaticalRelation QMOD_RELATION;
        public static void processQuanftificationModifiers(edu.stanford.nlp.semgraph.SemanticGraph graph) { }
        public static void collapseCompounds(edu.stanford.nlp.semgraph.SemanticGraph graph) { }
        public static void collapseParticles(edu.stanford.nlp.semgraph.SemanticGraph graph) { }
        public static void resolvePronouns(edu.stanford.nlp.semgraph.SemanticGraph graph) { } }""",
    'semgraph.SemanticGraph': """public class SemanticGraph {
        public String[] words;
        public SemanticGraph(String[] words) { this.words = words; } }""",
    'semgraph.SemanticGraphCoreAnnotations': """public class SemanticGraphCoreAnnotations {
        public static class CollapsedCCProcessedDependenciesAnnotation { } }""",
    'semgraph.semgrex.SemgrexPattern': """public class SemgrexPattern {
        String pattern;
        public static SemgrexPattern compile(String pattern) {
            SemgrexPattern made = new SemgrexPattern();
            made.pattern = pattern;
            return made; }
        public SemgrexMatcher matcher(edu.stanford.nlp.semgraph.SemanticGraph graph) {
            return new SemgrexMatcher(pattern.equals("{tag:/NNP?S?/}=word") ? graph.words : new String[0]); } }""",
    'semgraph.semgrex.SemgrexMatcher': """public class SemgrexMatcher {
        String[] words;
        int at = -1;
        SemgrexMatcher(String[] words) { this.words = words; }
        public boolean find() { return ++at < words.length; }
        public boolean findNextMatchingNode() { return find(); }
        public edu.stanford.nlp.ling.IndexedWord getNode(String name) {
            return new edu.stanford.nlp.ling.IndexedWord(words[at]); }
        public String getRelnString(String name) { return ""; } }""",
}


@pytest.fixture
def spice(monkeypatch):
    """SPICE without METEOR, and without its download."""
    spice = pytest.importorskip('pycocoevalcap.spice.spice')
    monkeypatch.setattr(shutil, 'which', lambda name: name)
    monkeypatch.setattr(coco_metrics, '_meteor', lambda *_: 0.0)
    monkeypatch.setattr(spice, 'get_stanford_models', lambda: None)
    return spice


@pytest.mark.skipif(not shutil.which('javac'), reason='needs a Java that compiles')
def test_spice(spice, monkeypatch, tmp_path):
    """Its own program and synonyms, with another parser: twice the common objects over all of both, per picture."""
    for name, source in PARSER.items():
        folder, _, name = f'edu.stanford.nlp.{name}'.rpartition('.')
        path = tmp_path / 'source' / folder.replace('.', '/') / f'{name}.java'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'package {folder};\n{source}\n')
    subprocess.run(['javac', '-nowarn', '-d', tmp_path / 'classes', *(tmp_path / 'source').rglob('*.java')], check=True)
    shutil.copytree(Path(spice.__file__).parent, tmp_path / 'spice', ignore=shutil.ignore_patterns('stanford-*.jar'))
    with zipfile.ZipFile(tmp_path / 'spice' / 'lib' / 'stanford-corenlp-3.6.0.jar', 'w') as jar:
        for path in (tmp_path / 'classes').rglob('*.class'):
            jar.write(path, path.relative_to(tmp_path / 'classes'))
    monkeypatch.setattr(spice, '__file__', str(tmp_path / 'spice' / 'spice.py'))

    references = [['red circle', 'small red square'], ['car'], ['caf\u00e9'], ['two dogs']]
    captions = ['red circle', 'automobile', 'caf\u00e9', 'two cats']
    said = []
    scores = coco_scores([[words.split() for words in those] for those in references],
                         [words.split() for words in captions], spice=True, say=said.append)
    # 2 of 2 and of 4, a synonym, not ASCII, 1 of 2 and of 2
    assert scores['SPICE'] == pytest.approx((2 / 3 + 1 + 1 + 1 / 2) / 4, abs=5e-4) and not said
    assert list(scores)[-1] == 'SPICE'


@pytest.mark.parametrize(('output', 'message'), [
    ('Parsing\nException in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat edu.anu',
     'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'),
    ('Killed', 'java ended with 1')])
def test_spice_that_fails_in_java(spice, monkeypatch, output, message):
    said = []
    monkeypatch.setattr(coco_metrics.subprocess, 'run',
                        lambda command, **_: subprocess.CompletedProcess(command, 1, stdout='', stderr=output))
    scores = coco_scores(REFERENCES, CAPTIONS, spice=True, say=said.append)
    assert 'SPICE' not in scores and 'CIDEr' in scores
    assert said == [f'SPICE is left out: RuntimeError: {message}']


def test_spice_without_the_internet(spice, monkeypatch):
    def download():
        raise URLError('no internet')

    said = []
    monkeypatch.setattr(spice, 'get_stanford_models', download)
    assert 'SPICE' not in coco_scores(REFERENCES, CAPTIONS, spice=True, say=said.append)
    assert said == ['SPICE is left out: URLError: <urlopen error no internet>']


def test_without_the_package(monkeypatch):
    said, real = [], builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith('pycocoevalcap'):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, '__import__', missing)
    assert coco_scores(REFERENCES, CAPTIONS, say=said.append) == {}
    assert said == ['METEOR, ROUGE-L, CIDEr and SPICE are left out: they come with pip install ".[metrics]"']


def test_one_caption_per_image():
    with pytest.raises(ValueError, match='2 captions for 3 images'):
        coco_scores(REFERENCES, CAPTIONS[:2])


def test_image_ids():
    assert image_ids(['val2014/COCO_val2014_000000391895.jpg', 'COCO_val2014_000000060623.jpg']) == [391895, 60623]
    assert image_ids(['123_a4.jpg', '77_b4.jpg']) == [0, 1]  # 4 and 4
    assert image_ids(['a.jpg', '3.png']) == [0, 1]
    assert image_ids(['10/a_7', '10/b_8']) == [7, 8]


def test_the_official_tools_read_the_files(tmp_path):
    coco = pytest.importorskip('pycocotools.coco')
    captions = [dict(name=f'COCO_val2014_{i + 7:012}.jpg', caption=caption, references=references, score=-1.0)
                for i, (caption, references) in enumerate(zip(CAPTIONS, REFERENCES, strict=True))]
    write_coco_files(tmp_path / 'results.json', captions, tmp_path / 'annotations.json')
    assert sorted(path.name for path in tmp_path.iterdir()) == ['annotations.json', 'results.json']
    truth = coco.COCO(str(tmp_path / 'annotations.json'))
    assert len(truth.anns) == sum(map(len, REFERENCES))  # each has a number of its own
    results = truth.loadRes(str(tmp_path / 'results.json'))
    assert results.getImgIds() == [7, 8, 9]
    assert [found['caption'] for found in results.imgToAnns[8]] == ['two red moons']
    assert [found['caption'] for found in truth.imgToAnns[7]] == ['a red star and a moon', 'one star']
    if shutil.which('java'):
        evaluation = pytest.importorskip('pycocoevalcap.eval').COCOEvalCap(truth, results)
        evaluation.evaluate = None  # it would run SPICE; its tokenizer and CIDEr are enough here
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
        tokens = [PTBTokenizer().tokenize({i: of.imgToAnns[i] for i in (7, 8, 9)}) for of in (truth, results)]
        assert Cider().compute_score(*tokens)[0] == pytest.approx(CiderD(REFERENCES).score(CAPTIONS))
