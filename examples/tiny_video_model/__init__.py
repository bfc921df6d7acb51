"""A very small video-language model, trained from scratch on rendered films with known answers."""
