"""Ideas beyond the lab, a file for each paper. Read them, copy them into a file of your own, try them."""
