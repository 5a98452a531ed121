"""Image files of any kind to square RGB pixels."""

import warnings
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

SIDE = 256  # of the squares that the encoder sees, in pixels
SMALLEST = 0.8  # of this; what a JPEG holds between this and the full size is hardly visible
HEIC = {b'ftyp' + brand for brand in (b'heic', b'heix', b'hevc', b'mif1', b'msf1')}  # bytes 4 to 12, ISO/IEC 23008-12
# Once for the whole process: create_input_files decodes in threads, which would undo one another's filters.
warnings.filterwarnings('ignore', module=r'PIL\.')


def to_rgb(image):
    """Convert a PIL image of any mode to RGB; what is transparent becomes white."""
    if image.mode in ('I', 'F') or image.mode.startswith('I;16'):  # PIL itself would clip these at 255
        pixels = np.asarray(image)
        # scale by the smallest usual range that holds the values, and by the largest value beyond these
        usual = {'u': [65535], 'i': [255, 65535], 'f': [1, 255, 65535]}[pixels.dtype.kind]
        pixels = np.nan_to_num(pixels.astype(np.float64), posinf=0).clip(min=0)
        full_scale = next((limit for limit in usual if pixels.max() <= limit), pixels.max())
        image = Image.fromarray((pixels * (255 / full_scale)).round().astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert('RGBA')
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
    return image if image.mode == 'RGB' else image.convert('RGB')


def open_image(content, name):
    """Decode an image file (first frame) and turn it upright. A large JPEG is decoded at a smaller scale.

    :param content: the file's bytes, of any format and colour mode that PIL reads
    :param name: what a message calls the file
    :return: a PIL image, RGB
    :raises ValueError: the file is truncated, too large or no image
    """
    try:
        with Image.open(BytesIO(content)) as image:
            # JPEG only: decode at 1/2, 1/4 or 1/8 scale, so long as neither side falls below SMALLEST of SIDE;
            # the scale is the same whether the picture is turned before or after.
            image.draft(None, (round(SMALLEST * SIDE), round(SMALLEST * SIDE)))
            image.load()
            with suppress(Exception):  # broken EXIF: the pixels are fine, leave them unturned
                ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image)
    except UnidentifiedImageError as error:
        reason = 'it is no picture, or of a kind that is not known here: save it as JPEG or PNG'
        if content[4:12] in HEIC:
            reason = 'it is a HEIC photo, as iPhones take them: open it on the phone or computer and export it as JPEG'
        raise ValueError(f'{name}: this image cannot be decoded: {reason}') from error
    except MemoryError:
        raise
    except Exception as error:  # damaged files make PIL raise nearly anything
        raise ValueError(f'{name}: this image cannot be decoded, is it truncated? '
                         f'({str(error) or type(error).__name__})') from error


def squash(image):
    """
    :param image: a PIL image, RGB
    :return: (3, SIDE, SIDE) uint8, what the encoder sees of it
    """
    image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def load_image(path):
    """A file as :func:`open_image` and :func:`squash` give it: (3, SIDE, SIDE) uint8, RGB."""
    return squash(open_image(Path(path).expanduser().read_bytes(), path))


def open_images(path):
    """Open an HDF5 file for reading, without a lock: files of the lab do not change once they have their name.

    :raises ValueError: a file that cannot be read; the message names it
    """
    try:
        return h5py.File(path, 'r', locking=False)
    except OSError as error:
        raise ValueError(f'{path} cannot be read, make it again: {error}') from error
