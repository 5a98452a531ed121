"""CIDEr-D (Vedantam et al. 2015, arXiv 1411.5726, sec. 4 and 7).

Every n-gram g of a caption has the weight tf(g) * idf(g), where tf is how often it occurs. The weights of a caption c
are the entries c_g of a vector of length |c|; those of a reference s are s_g. The two are compared by

    CIDEr-D_n(c, s) = 10 exp(-(l(c) - l(s))^2 / (2 sigma^2)) * sum over g of min(c_g, s_g) s_g / (|c| |s|)

and the score is the mean over the references of an image and over n = 1 to 4. As in the reference implementation
(pycocoevalcap), tf is a number (in the paper's eq. 1 a fraction of the caption's n-grams), idf(g) = log(images) -
log(max(1, images with g in a reference)), and the length l is the number of bigrams.
"""

import math
from collections import Counter

ORDERS, SIGMA = (1, 2, 3, 4), 6.0


def ngrams(words, n):
    """Counts of all sequences of ``n`` words; a caption of fewer words has none."""
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


class CiderD:
    """Scores captions against the references of one set of images.

    :param references: per image a list of reference captions, each a list of words
    """

    def __init__(self, references):
        self.log_images = math.log(len(references))
        self.images_with = Counter(g for those in references for g in {g for words in those for n in ORDERS
                                                                       for g in ngrams(words, n)})
        self.references = [[self.vectors(words) for words in those] for those in references]

    def vectors(self, words):
        """:return: per n a dict n-gram -> weight, and its length; the number of bigrams"""
        vectors = []
        for n in ORDERS:
            weights = {g: count * (self.log_images - math.log(max(1, self.images_with[g])))
                       for g, count in ngrams(words, n).items()}
            vectors.append((weights, math.hypot(*weights.values())))
        return vectors, max(len(words) - 1, 0)

    def score(self, image, caption):
        """
        :param image: its number among the references
        :param caption: list of words; an empty one scores 0
        :return: CIDEr-D, 0 to 10
        """
        vectors, length = self.vectors(caption)
        total = 0
        for of_reference, other in self.references[image]:
            same_length = math.exp(-(length - other) ** 2 / (2 * SIGMA ** 2))
            for (c, c_norm), (s, s_norm) in zip(vectors, of_reference, strict=True):
                common = sum(min(weight, s[g]) * s[g] for g, weight in c.items() if g in s)
                if common:
                    total += same_length * common / (c_norm * s_norm)
        return 10 * total / len(ORDERS) / len(self.references[image])


def cider_d(references, captions):
    """The mean over one caption per image: {'CIDEr-D': ...}, 0 to 10.

    :raises ValueError: not one caption per image
    """
    scorer = CiderD(references)
    scores = [scorer.score(image, caption) for image, (_, caption) in enumerate(zip(references, captions, strict=True))]
    return {'CIDEr-D': sum(scores) / len(scores)}
