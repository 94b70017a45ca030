"""Object stores: options and errors."""
