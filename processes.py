"""One training in several processes: a GPU each, or a CPU core each, on one machine or on many.

Hugging Face accelerate finds the devices and connects the processes, whoever started them: the setting ``processes``
(by accelerate's ``notebook_launcher``), ``accelerate launch`` or ``torchrun``. Every process runs the same lines on its
share of each batch; gradients are summed, so that all hold the same weights after every step, those of one process with
the whole batch. A process that was started alone is the only one, and none of this does anything.
"""

import gc
import io
import os
import signal
import socket
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from datetime import timedelta

import psutil
import torch
from accelerate import Accelerator, PartialState, notebook_launcher
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import distributed, nn
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from tqdm import tqdm

PATIENCE = timedelta(hours=12)  # of those that wait for one: it may be encoding COCO, or waiting for who does


class ProcessFailed(RuntimeError):
    """One of several processes was killed or failed; the others were ended."""


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


def launch(function, *args, processes):
    """Run ``function(*args)`` in several processes of this machine, and wait for all of them.

    :raises ProcessFailed: one of them was killed or failed; the others are ended
    :raises KeyboardInterrupt: this process was interrupted; they are ended as well
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    with socket.socket() as free:  # two trainings on one machine must not meet
        free.bind(('127.0.0.1', 0))
        port = str(free.getsockname()[1])
    print(f'Starting {processes} processes.', flush=True)
    shown = sys.stdout
    # what a launch that failed has left of its connection has a thread here: freed in a fork, it would wait for that
    # thread for ever
    gc.collect()
    gc.freeze()
    # torch takes these over and does not give them back
    taken = [getattr(signal, name) for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT') if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in taken
                } if threading.current_thread() is threading.main_thread() else {}
    try:
        with redirect_stdout(io.StringIO()):  # accelerate's own message speaks of GPUs even where there are none
            notebook_launcher(_run, (function, args, shown, len(_forks(os.getpid())) + processes),
                              num_processes=processes, use_port=port)
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise ProcessFailed(f'this process was ended by {error.sigval.name}, and the {processes} with it') from None
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode < 0:
            what = f'was ended by {failure.signal_name()} (out of memory?)'
        else:
            message = failure.message if isinstance(failure.message, str) else failure.message['message']
            what = f'failed: {message}'
        raise ProcessFailed(f'process {number} of {processes} {what}; the others were ended as well') from None
    finally:
        gc.unfreeze()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _forks(number):
    """:return: the processes that process ``number`` has forked and that run"""
    parent, found = psutil.Process(number), []
    for child in parent.children():
        with suppress(psutil.Error):  # it has just ended
            if child.cmdline() == parent.cmdline():
                found.append(child)
    return found


@record  # what it raises comes back to launch()
def _run(function, args, stdout, forks):
    # The first to come connects to a thread of the parent, which takes a lock of the C library for a moment. A process
    # that is forked in this moment finds the lock taken for ever, so wait until all are there.
    end = time.monotonic() + 10
    while len(_forks(os.getppid())) < forks and time.monotonic() < end:
        time.sleep(0.01)
    sys.stdout = stdout
    torch.set_num_threads(1)  # OpenMP cannot start its threads anew after a fork
    try:
        function(*args)
    except Exception:
        time.sleep(1)  # if this is because another process has died, let that be noticed first
        raise
    finally:
        disconnect()


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
        for tensor in (*module.parameters(), *module.buffers()):
            distributed.broadcast(tensor.data, 0)


def sum_gradients(parameters):
    """Give every process the sum of all processes' gradients, in one message."""
    if count() == 1:
        return
    parameters = [p for p in parameters if p.requires_grad]
    summed = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    distributed.all_reduce(summed)
    for p, gradient in zip(parameters, summed.split([p.numel() for p in parameters]), strict=True):
        p.grad = gradient.view_as(p)


class SharedBatchNorm1d(nn.BatchNorm1d):
    """Batch norm with mean and variance over the rows of all processes, as over one process's whole batch.

    (``nn.SyncBatchNorm`` does this on GPUs, but not on CPUs.)
    """

    def forward(self, x):
        """
        :param x: (n, features), n may differ between the processes
        :return: (n, features)
        """
        if not self.training:
            return super().forward(x)
        sizes = gather([len(x)])
        start = sum(sizes[:rank()])
        return super().forward(_AllRows.apply(x, sizes))[start:start + len(x)]


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sizes):
        ctx.sizes = sizes
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[:len(x)] = x
        rows = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(rows, padded)
        return torch.cat([part[:size] for part, size in zip(rows, sizes, strict=True)])

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient.split(ctx.sizes)[rank()], None


def share_batch_norm(module):
    """Let the batch norms of a module see the rows of all processes."""
    for part in module.modules():
        if count() > 1 and type(part) is nn.BatchNorm1d:
            part.__class__ = SharedBatchNorm1d  # same parameters, same names in checkpoints


def progress_bar(*args, **options):
    """A tqdm bar, in the main process only."""
    return tqdm(*args, disable=rank() > 0, **options)


def say(text):
    """Print, in the main process only."""
    if rank() == 0:
        print(text, flush=True)
