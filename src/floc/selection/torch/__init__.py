"""The torch backend, for any device."""
