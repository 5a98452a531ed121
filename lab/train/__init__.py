"""What training needs: batches, stored features, checkpoints, several GPUs, the fast path. Leave it alone."""
