"""Image files of any kind to square RGB pixels."""

import warnings
from contextlib import suppress

import numpy as np
from PIL import Image, ImageOps

SMALLEST = 0.8  # of the wanted size; what a JPEG holds between this and the full size is hardly visible
# no torch here: the decoding processes of create_input_files import this module, and torch takes seconds


class ImageFileError(ValueError):
    """A file that is no readable picture; the message names it."""


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


def load_image(path, image_size=256):
    """Decode an image file (first frame), turn it upright and squash it to a square.

    :param path: any format and colour mode that PIL reads
    :return: (3, image_size, image_size) uint8, RGB
    :raises ImageFileError: the file is missing, truncated, too large or no image
    """
    try:
        with warnings.catch_warnings(action='ignore'), Image.open(path) as image:
            # JPEG only: decode at 1/2, 1/4 or 1/8 scale, so long as neither side falls below SMALLEST of the target;
            # the scale is the same whether the picture is turned before or after.
            smallest = round(SMALLEST * image_size)
            image.draft(None, (smallest, smallest))
            image.load()
            with suppress(Exception):  # broken EXIF: the pixels are fine, leave them unturned
                ImageOps.exif_transpose(image, in_place=True)
            image = to_rgb(image).resize((image_size, image_size), Image.Resampling.BICUBIC)
    except MemoryError:
        raise
    except FileNotFoundError:
        raise ImageFileError(f'{path}: there is no such file') from None
    except Image.DecompressionBombError as error:
        raise ImageFileError(f'{path}: this image has too many pixels to be a photo ({error})') from error
    except Exception as error:  # damaged files make PIL raise nearly anything
        reason = getattr(error, 'strerror', None) or str(error) or type(error).__name__
        raise ImageFileError(f'{path}: this image cannot be decoded, is it truncated? ({reason})') from error
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
