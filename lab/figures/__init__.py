"""The lab's figures. Each function returns a matplotlib figure, which the notebooks show and save.

``style`` has colours, fonts and how a figure is saved, ``curves`` what is drawn over epochs and beam sizes,
``attention`` where a decoder looks, ``pictures`` sheets of pictures with their captions.
"""
# ruff: noqa: F401

from lab.figures.attention import overlay, plot_attention, plot_pointing, plot_visual_grounding, visual_grounding
from lab.figures.curves import bleu_table, plot_bleu, plot_diversity, plot_history, read_histories
from lab.figures.pictures import plot_captions, plot_sheet, plot_side_by_side
from lab.figures.style import label, save_figure
