"""Train from a command line: ``solver.train`` with any of its settings.

    python -m lab.experiments.train attention=False epochs=20 output_folder=runs/long
    torchrun --nproc_per_node 4 -m lab.experiments.train batch_size=512    # four GPUs of this machine
    accelerate launch --multi_gpu --num_machines 2 --num_processes 16 ... \
        -m lab.experiments.train ...

Each process takes its share of every batch, so ``batch_size`` is that of all together. On several machines
``data_folder`` and ``output_folder`` are folders that all of them see.
"""

import ast
import sys

from accelerate import PartialState

from solver import train


def read_settings(words):
    """:param words: list of 'name=value'; a value that is none of Python's is a string"""
    cfg = {}
    for word in words:
        name, equals, value = word.partition('=')
        if not equals:
            raise ValueError(f'{word!r} is no setting: write name=value, with the names in lab/train/settings.py')
        try:
            cfg[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            cfg[name] = value
    return cfg


if __name__ == '__main__':
    try:
        train(read_settings(sys.argv[1:]))
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f'{error}')
    finally:
        PartialState().destroy_process_group()
