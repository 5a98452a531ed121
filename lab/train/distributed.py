"""One training in several processes: a GPU each, or a CPU core each, on one machine or on many.

``torchrun`` or ``accelerate launch`` start them, accelerate finds the devices and connects them. Every process runs the
same lines on its share of each batch. Gradients are summed, so all hold the same weights after every step: those of one
process with the whole batch. In a process that was started alone these functions change nothing.
"""

import os
from datetime import timedelta

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import distributed, nn
from tqdm import tqdm

PATIENCE = timedelta(hours=12)  # of those that wait for one: it may be encoding COCO, or waiting for who does


def rank():
    """Number of this process among all; 0 is the main one, which prints and writes."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def count():
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def launched():
    """Whether this process was started as one of several."""
    return int(os.environ.get('WORLD_SIZE', 1)) > 1


def on_this_machine():
    """Number of processes that share this machine's memory."""
    return int(os.environ.get('LOCAL_WORLD_SIZE', 1)) if launched() else 1


def take_own_gpu(device=None):
    """Before anything else touches a GPU: each of several processes has one of its own.

    :param device: the setting; nothing happens for 'cpu'
    """
    number = int(os.environ.get('LOCAL_RANK', 0))
    if launched() and device != 'cpu' and number < torch.cuda.device_count():
        torch.cuda.set_device(number)


def connect(device, bf16=False):
    """Meet the other processes, if there are any.

    :param device: 'cpu', 'cuda', 'cuda:1', ...
    :param bf16: matrix products in half precision
    :return: this process's own device
    """
    AcceleratorState._reset_state(reset_partial_state=True)  # of a training before in the same notebook
    if device.startswith('cuda:') and not launched():
        torch.cuda.set_device(device)
    accelerator = Accelerator(cpu=device == 'cpu', mixed_precision='bf16' if bf16 else 'no',
                              kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)])
    return str(accelerator.device) if accelerator.device.type == 'cuda' and launched() else device


def disconnect():
    """Leave the other processes, at the end of a program."""
    if distributed.is_initialized():
        PartialState().destroy_process_group()


def wait_for_all():
    """Return when all processes have come here."""
    if count() > 1:
        PartialState().wait_for_everyone()


def gather(values):
    """:return: list of what all processes have in their lists, one process's after another's"""
    return gather_object(values) if count() > 1 else values


def same_weights(module):
    """Give every process the main one's parameters and buffers."""
    if count() > 1:
        for tensor in module.parameters():
            distributed.broadcast(tensor.data, 0)
        same_buffers(module)


def sum_gradients(parameters):
    """Give every process the sum of all processes' gradients, in one message."""
    if count() == 1:
        return
    parameters = [p for p in parameters if p.requires_grad]
    summed = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    distributed.all_reduce(summed)
    for p, gradient in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
        p.grad = gradient.view_as(p)


def share_batch_norm(module):
    """On GPUs let the batch norms of a module see the rows of all processes; on CPUs each sees its own.

    :return: the module, with ``nn.SyncBatchNorm`` in the place of its batch norms
    """
    if count() > 1 and next(module.parameters()).is_cuda:
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    return module


def same_buffers(module):
    """Give every process the main one's buffers, such as a batch norm's running mean."""
    if count() > 1:
        for tensor in module.buffers():
            distributed.broadcast(tensor, 0)


def averages(**meters):
    """Averages over all processes, as plain numbers; None for what nothing was averaged of.

    :param meters: ``utils.AverageMeter`` of this process
    """
    every = gather([{name: (float(meter.sum), meter.count) for name, meter in meters.items()}])
    sums = {name: [sum(values) for values in zip(*(own[name] for own in every), strict=True)] for name in meters}
    return {name: total / count if count else None for name, (total, count) in sums.items()}


def progress_bar(*args, **options):
    """A tqdm bar, in the main process only. There, ``TQDM_DISABLE=1`` in the environment turns it off."""
    if rank() > 0:
        options['disable'] = True
    return tqdm(*args, **options)


def log(text):
    """Print, in the main process only."""
    if rank() == 0:
        print(text, flush=True)
