"""CIDEr-D (Vedantam et al. 2015, arXiv 1411.5726, sec. 4 and 7), fast enough to be a reward in training.

Every n-gram g of a caption has the weight tf(g) * idf(g), where tf is how often it occurs. The weights of a caption c
are the entries c_g of a vector of length |c|; those of a reference s are s_g. The two are compared by

    CIDEr-D_n(c, s) = 10 exp(-(l(c) - l(s))^2 / (2 sigma^2)) * sum over g of min(c_g, s_g) s_g / (|c| |s|)

and the score is the mean over the references of an image and over n = 1 to 4. As in the reference implementation
(pycocoevalcap), tf is a number (in the paper's eq. 1 a share of the caption's n-grams), idf(g) = log(images) -
log(max(1, images with g in a reference)), and the length l is the number of bigrams.

Nothing here goes through n-grams one by one: they are numbers, counted and looked up by sorting.
"""

import numpy as np

N, SIGMA = 4, 6.0
BITS = 16  # of a word's number: four of them make the 64 of an n-gram's


class CiderD:
    """Scores captions against the references of one set of images.

    :param references: per image a list of reference captions, each a list of words
    :raises ValueError: no images, an image without references, no word in any, or over 65,535 different ones
    """

    def __init__(self, references):
        if not references or not all(references):
            raise ValueError('CIDEr-D needs at least one reference caption for each image')
        self.words = {word: number for number, word in enumerate(
            sorted({word for those in references for caption in those for word in caption}), 1)}
        if not self.words:
            raise ValueError('CIDEr-D needs references with words; these are all empty')
        if len(self.words) >= 2 ** BITS:
            raise ValueError(f'CIDEr-D is written for up to {2 ** BITS - 1:,} different words; these references have '
                             f'{len(self.words):,}')
        captions = [caption for those in references for caption in those]
        self.image_of = np.repeat(np.arange(len(references)), [len(those) for those in references])
        self.references_of = np.bincount(self.image_of)
        caption, key, count, self.lengths = self._count(captions)

        self.known, dense = np.unique(key, return_inverse=True)  # every n-gram of the references
        # the n-grams of each image's references, in the order of (image, n-gram), to look them up
        place = self.image_of[caption] * len(self.known) + dense
        order = np.argsort(place, kind='stable')
        place = place[order]
        self.first = np.flatnonzero(_changes(place))
        self.places, self.many = place[self.first], np.diff(np.append(self.first, len(place)))

        self.log_images = np.log(len(references))
        images_with = np.bincount(self.places % len(self.known), minlength=len(self.known))
        self.idf = self.log_images - np.log(images_with)
        weight = count * self.idf[dense]
        self.norms = _norms(caption, key, weight, len(captions))
        self.of_reference, self.weight = caption[order], weight[order]

    def scores(self, images, captions):
        """
        :param images: (n,) number of each caption's image
        :param captions: n lists of words; an empty one scores 0
        :return: (n,) float64, 0 to 10
        :raises ValueError: not one image for each caption, an image without references, or too many different words
        """
        images, of = np.asarray(images, dtype=np.int64), len(self.references_of)
        if len(images) != len(captions) or ((images < 0) | (images >= of)).any():
            raise ValueError(f'{len(captions)} captions for {len(images)} images: there must be one image for each, '
                             f'numbered 0 to {of - 1}')
        caption, key, count, lengths = self._count(captions)
        dense = np.searchsorted(self.known, key)
        dense[dense == len(self.known)] = 0
        known = self.known[dense] == key
        weight = count * np.where(known, self.idf[dense], self.log_images)
        norms = _norms(caption, key, weight, len(captions))

        # each n-gram of a caption, with each reference of its image that has it
        place = images[caption] * len(self.known) + dense
        match = np.searchsorted(self.places, place)
        match[match == len(self.places)] = 0
        rows = np.flatnonzero(known & (self.places[match] == place))
        many = self.many[match[rows]]
        entry = np.repeat(self.first[match[rows]], many) + _count_up(many)
        row = np.repeat(rows, many)

        n, caption, reference = _order(key[row]), caption[row], self.of_reference[entry]
        common = np.minimum(weight[row], self.weight[entry]) * self.weight[entry]
        common /= norms[n, caption] * self.norms[n, reference]
        common *= np.exp(-(lengths[caption] - self.lengths[reference]) ** 2 / (2 * SIGMA ** 2))
        total = np.bincount(caption, common, minlength=len(captions))
        return 10 * total / N / self.references_of[images]

    def score(self, hypotheses):
        """The corpus's score: the mean over one caption per image, in the order of the references.

        :raises ValueError: not one caption per image
        """
        if len(hypotheses) != len(self.references_of):
            raise ValueError(f'{len(hypotheses)} captions for {len(self.references_of)} images: there must be one for '
                             'each')
        return float(self.scores(np.arange(len(hypotheses)), hypotheses).mean())

    def _numbers(self):
        """:return: function from words to numbers; words that no reference has get new ones, for this time"""
        known, new = self.words, {}

        def number(word):
            index = known.get(word)
            if index is None:
                index = new.setdefault(word, len(known) + 1 + len(new))
                if index >= 2 ** BITS:
                    raise ValueError(f'CIDEr-D is written for up to {2 ** BITS - 1:,} different words; references and '
                                     'captions have more')
            return index
        return number

    def _count(self, captions):
        """Count every n-gram of every caption.

        :return: caption (k,), key (k,) and count (k,) of the k different ones, ascending by caption; number of bigrams
            of each caption
        """
        sizes = np.array([len(words) for words in captions], dtype=np.int64)
        words = np.fromiter(map(self._numbers(), (word for caption in captions for word in caption)), np.uint64,
                            sizes.sum())
        of_caption = np.repeat(np.arange(len(captions)), sizes)
        left = np.repeat(sizes, sizes) - _count_up(sizes)  # words from here to the caption's end
        keys, owners, key = [], [], np.zeros(len(words), dtype=np.uint64)
        for n in range(N):
            here = np.flatnonzero(left > n)
            key[here] |= words[here + n] << np.uint64(BITS * n)
            keys.append(key[here])
            owners.append(of_caption[here])
        keys, owners = np.concatenate(keys), np.concatenate(owners)
        order = np.lexsort((keys, owners))
        keys, owners = keys[order], owners[order]
        starts = np.flatnonzero(_changes(keys) | _changes(owners))
        return owners[starts], keys[starts], np.diff(np.append(starts, len(keys))), np.maximum(sizes - 1, 0)


def _order(key):
    """n - 1 of the n-grams with these numbers."""
    return sum((key >> np.uint64(BITS * n) > 0).astype(np.int64) for n in range(1, N))


def _changes(values):
    """Where a value is another than the one before it; the first one is."""
    new = np.ones(len(values), dtype=bool)
    new[1:] = values[1:] != values[:-1]
    return new


def _norms(caption, key, weight, captions):
    """:return: (N, captions) the lengths of their vectors; 1 in place of 0, whose products are 0 anyway"""
    squares = np.bincount(_order(key) * captions + caption, weight ** 2, minlength=N * captions)
    norms = np.sqrt(squares).reshape(N, captions)
    norms[norms == 0] = 1
    return norms


def _count_up(sizes):
    """0, 1, ... of each size: [2, 3] gives [0, 1, 0, 1, 2]."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
