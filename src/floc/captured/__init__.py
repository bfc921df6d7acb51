"""Videos that were compressed for a model, whatever host runs it."""
