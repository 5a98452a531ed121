"""The lab the usual way, as tutorials write it: what ``benchmarks.bench`` measures the lab's own ways against.

The encoder sees the picture of every caption; attention keys are computed at every word; the vocabulary layer runs once
per step into a large tensor of zeros; search takes one image at a time.
"""

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from instructor.assemble import ROOT
from utils import topk_accuracy


def reference_models(folder):
    """The reference's ``models.py`` as a module.

    :param folder: where a copy of it may lie
    """
    from instructor.expected import load  # this needs pytest, all else here does not
    return load((ROOT / 'instructor' / 'models.py').read_text(encoding='utf-8'), folder)


def encode(encoder, images):
    """What ``encoder(images)`` gives for uint8 images of any size, convolutions in torch's default layout of pixels.

    :param encoder: ``models.Encoder`` whose backbone takes images as they come (``input_size`` is None)
    """
    return encoder.resize(encoder.stages((images.float() / 255 - encoder.mean) / encoder.std).permute(0, 2, 3, 1))


def forward(decoder, encoder_out, encoded_captions, caption_lengths):
    """Teacher forcing, everything in the loop; returns what the decoder's ``forward`` returns."""
    attends = hasattr(decoder, 'attention')
    encoder_out = encoder_out.flatten(1, -2)
    caption_lengths, sort_ind = caption_lengths.to(encoder_out.device).flatten().sort(dim=0, descending=True)
    encoder_out, encoded_captions = encoder_out[sort_ind], encoded_captions[sort_ind]
    lengths = (caption_lengths - 1).tolist()
    embeddings = decoder.embedding(encoded_captions)
    h, c = decoder.init_hidden_state(encoder_out)
    device = encoder_out.device
    predictions = torch.zeros(len(lengths), max(lengths), decoder.vocab_size, device=device)
    alphas = torch.zeros(len(lengths), max(lengths), encoder_out.shape[1], device=device)
    for t in range(max(lengths)):
        n = sum(length > t for length in lengths)
        if attends:
            scores, alpha, h, c = decoder.one_step(embeddings[:n, t], encoder_out[:n], h[:n], c[:n])
            alphas[:n, t] = alpha
        else:
            scores, h, c = decoder.one_step(embeddings[:n, t], h[:n], c[:n])
        predictions[:n, t] = scores
    return predictions, encoded_captions, lengths, *([alphas] if attends else []), sort_ind


def loss(decoded):
    """Cross-entropy per word and doubly stochastic penalty of what :func:`forward` returns; top-5 accuracy too."""
    predictions, captions, lengths, *alphas, _ = decoded
    scores, targets = (pack_padded_sequence(rows, lengths, batch_first=True).data
                       for rows in (predictions, captions[:, 1:]))
    topk_accuracy(scores.detach(), targets, 5)
    return F.cross_entropy(scores, targets) + sum(((1 - alpha.sum(dim=1)) ** 2).mean() for alpha in alphas)


@torch.no_grad()
def beam_search(decoder, encoder_out, word_map, beam_size, max_len=50):
    """The best caption of one image.

    :param encoder_out: (1, num_pixels, encoder_dim)
    :return: word indices
    """
    k, end, vocab_size = beam_size, word_map['<end>'], len(word_map)
    encoder_out = encoder_out.expand(k, *encoder_out.shape[1:])
    h, c = decoder.init_hidden_state(encoder_out)
    words = torch.full((k,), word_map['<start>'], device=encoder_out.device)
    sequences, total = words.unsqueeze(1), torch.zeros(k, 1, device=encoder_out.device)
    complete = []
    for step in range(max_len):
        embeddings = decoder.embedding(words)
        if hasattr(decoder, 'attention'):
            scores, _, h, c = decoder.one_step(embeddings, encoder_out[:len(words)], h, c)
        else:
            scores, h, c = decoder.one_step(embeddings, h, c)
        scores = total + F.log_softmax(scores, dim=1)
        best, index = (scores[0] if step == 0 else scores.flatten()).topk(k, dim=0)
        beams, words = index // vocab_size, index % vocab_size
        sequences = torch.cat([sequences[beams], words.unsqueeze(1)], dim=1)
        going_on = [i for i, word in enumerate(words.tolist()) if word != end]
        complete += [(best[i].item(), sequences[i].tolist()) for i in range(k) if i not in going_on]
        k = len(going_on)
        if not k:
            break
        h, c, sequences = h[beams[going_on]], c[beams[going_on]], sequences[going_on]
        words, total = words[going_on], best[going_on].unsqueeze(1)
    return max(complete, default=(0, sequences[0].tolist()))[1]
