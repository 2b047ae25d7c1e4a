"""What is saved, and by which names: models, optimizers and all else as one flat dict."""
