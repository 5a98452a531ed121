"""One training on the devices that there are: a CPU, a GPU, or several processes with one each.

``torchrun`` or ``accelerate launch`` start the processes. accelerate shares out the batches and averages the gradients.
"""

import os
from datetime import timedelta

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration, InitProcessGroupKwargs, gather_object
from tqdm import tqdm

# torch's own setting: on Linux it takes large tensors from large pages, which is faster
os.environ.setdefault('THP_MEM_ALLOC_ENABLE', '1')


def accelerator_for(cfg):
    """accelerate's ``Accelerator`` for these settings.

    Its own variable ``ACCELERATE_MIXED_PRECISION=bf16`` takes half precision for matrix products.

    :raises ValueError: the device of the settings is not here
    """
    AcceleratorState._reset_state(reset_partial_state=True)  # of a training before in the same notebook
    if cfg['device'].startswith('cuda:'):
        torch.cuda.set_device(cfg['device'])
    accelerator = Accelerator(
        cpu=cfg['device'] == 'cpu', gradient_accumulation_steps=cfg['accumulate'],
        device_placement=False,  # the model is on its device, and a batch's lengths stay on the CPU
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        # one process may be encoding COCO while the others wait
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=12))])
    if accelerator.device.type != torch.device(cfg['device']).type:
        raise ValueError(f"setting 'device' is {cfg['device']!r}, and there is none here: leave it out to take the GPU "
                         'or the CPU')
    return accelerator


def progress_bar(*args, **options):
    """A tqdm bar, in the main process only. There, ``TQDM_DISABLE=1`` in the environment turns it off."""
    return tqdm(*args, **options) if PartialState().is_main_process else tqdm(*args, **{**options, 'disable': True})


def log(text):
    """Print, in one process of each machine."""
    PartialState().print(text, flush=True)


def averages(**meters):
    """Averages of ``utils.AverageMeter`` over all processes, as numbers; None for what nothing was averaged of."""
    every = gather_object([[(float(meter.sum), meter.count) for meter in meters.values()]])
    totals = [[sum(values) for values in zip(*own, strict=True)] for own in zip(*every, strict=True)]
    return {name: total / count if count else None for name, (total, count) in zip(meters, totals, strict=True)}
