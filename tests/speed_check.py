"""Is it fast enough to train with?"""

from checking import SINGLE, SLOWEST


def check_speed(found):
    """Compared with plain matrix products of the same sizes, timed beside it."""
    found.same('result', shape='length, mixture', tolerance=SINGLE, cause='the result is wrong, however fast')
    ratio = found['seconds'] / found['yardstick']
    print(f'at most {SLOWEST} times the yardstick; here {ratio:.1f} times')
    found.require(ratio <= SLOWEST, f'at most {SLOWEST} times the time of the matrix products in it',
                  f'it takes {ratio:.0f} times as long',
                  'a Python loop over captions or pixels: work on the whole batch at once')
