"""What notes 2 and 3 share: small tasks with a known truth, the loop over the letters, training, accuracy.

Everything here is time first, as ``nn.GRU`` has it by default: a batch of strings is (length, batch_size).
"""

import random
import string
from datetime import date, timedelta

import torch
from torch import nn
from torch.nn import functional as F

START, END, BLANK = '<', '>', ' '
ALPHABET = START + END + BLANK + string.ascii_letters + string.digits + '.,/-'
NUMBER = {letter: number for number, letter in enumerate(ALPHABET)}
DATE_LENGTH = len('September 23, 2024')


# --- Tasks ---


LETTERS = string.ascii_lowercase
NEXT = str.maketrans(LETTERS, LETTERS[1:] + LETTERS[0])  # b for a, c for b, ..., a for z
STRING_TASKS = {'reverse': lambda text: text[::-1], 'copy': lambda text: text,
                'shift': lambda text: text.translate(NEXT)}


def pairs(task, n, length, rng):
    """Draw ``n`` random questions with their answers.

    :param task: 'reverse', 'copy' or 'shift' of random letters, or 'dates': a day in one of six spellings to ISO form
    :param length: letters of each question; not used for dates, which are padded with blanks on the left
    :param rng: a ``random.Random``
    :return: list of (question, answer)
    """
    if task != 'dates':
        questions = [''.join(rng.choices(string.ascii_lowercase, k=length)) for _ in range(n)]
        return [(question, STRING_TASKS[task](question)) for question in questions]
    drawn = []
    for _ in range(n):
        day = date(1950, 1, 1) + timedelta(days=rng.randrange(36524))
        spelling = rng.choice([f'{day.day} {day:%B} {day.year}', f'{day:%B} {day.day}, {day.year}',
                               f'{day.day} {day:%b} {day.year}', f'{day:%b} {day.day}, {day.year}',
                               f'{day.day}.{day.month}.{day.year}', f'{day.day}/{day.month}/{day.year}'])
        drawn.append((spelling.rjust(DATE_LENGTH, BLANK), day.isoformat()))
    return drawn


def to_tensor(texts):
    """Texts of the same length as numbers, (length, len(texts))."""
    return torch.tensor([[NUMBER[letter] for letter in text] for text in texts]).T


def batch(task, n, length, rng):
    """:return: questions (length, n), and answers with END behind each (answer length + 1, n)"""
    questions, answers = zip(*pairs(task, n, length, rng), strict=True)
    return to_tensor(questions), to_tensor([answer + END for answer in answers])


# --- One step at a time ---


def decode(encoder, decoder, questions, steps, answers=None):
    """Read the questions, then let the decoder take one step per letter.

    :param questions: (length, batch_size)
    :param steps: how many letters to write
    :param answers: (steps, batch_size) the true letters, for teacher forcing; None: the decoder reads its own letters
    :return: log-probabilities (steps, batch_size, letters); list of the attention weights of each step
    """
    outputs, hidden = encoder(questions)
    letter = torch.full_like(questions[0], NUMBER[START])  # the first letter that is read
    log_probabilities, weights = [], []
    for t in range(steps):
        log_probability, hidden, weight = decoder(letter, hidden, outputs)
        log_probabilities.append(log_probability)
        weights.append(weight)
        letter = answers[t] if answers is not None else log_probability.argmax(dim=1)
    return torch.stack(log_probabilities), weights


def train(encoder, decoder, task, steps, max_length=12, seed=0):
    """Train both with teacher forcing; all strings of a batch have one length, so nothing needs padding."""
    rng = random.Random(seed)
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.005)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)  # the learning rate falls to 0
    for _ in range(steps):
        questions, answers = batch(task, 64, rng.randint(1, max_length), rng)
        log_probabilities, _ = decode(encoder, decoder, questions, len(answers), answers)
        loss = F.nll_loss(log_probabilities.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)  # a gradient that is too long is shortened
        optimizer.step()
        scheduler.step()


@torch.no_grad()
def right_letters(encoder, decoder, task, length, teacher_forcing=False, n=500):
    """Whether each letter of ``n`` new answers is right, END included: (length + 1, n) bool."""
    questions, answers = batch(task, n, length, random.Random(1))
    log_probabilities, _ = decode(encoder, decoder, questions, len(answers), answers if teacher_forcing else None)
    return log_probabilities.argmax(dim=2) == answers


def accuracy(encoder, decoder, task, length):
    """Fraction of answers in which every letter is right."""
    return right_letters(encoder, decoder, task, length).all(dim=0).float().mean().item()


@torch.no_grad()
def answer(encoder, decoder, question, steps):
    """:return: the answer to one question; attention weights (letters written, letters read), None without attention"""
    log_probabilities, weights = decode(encoder, decoder, to_tensor([question]), steps)
    written = ''.join(ALPHABET[number] for number in log_probabilities.argmax(dim=2)[:, 0]).split(END)[0]
    if weights[0] is None:
        return written, None
    return written, torch.stack(weights)[:len(written), :, 0]
