"""TODO 14: trained word vectors."""

from bonus_checks import after


def test_load(lab):
    answer = lab('vectors_load', 'load')
    answer.same('words found', rule='each word of the vocabulary goes into loaded, others do not')
    answer.same('rows', shape='words, embed_dim', rule='the numbers of a word become its row, those of the first time')


def test_refused_files(lab):
    after(lab, test_load)
    answer = lab('vectors_load', 'load')
    for of in (' of a file with a number that is none', ' of a file without its words'):
        answer.same(f'words found{of}', rule='lines(...) and vector(...) say what is wrong with a file')
        answer.same(f'rows{of}', cause='a line is used before the next one is read')
