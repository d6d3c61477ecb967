"""What the backends for saved models share: settings, checks, completion and the execution of batches."""
