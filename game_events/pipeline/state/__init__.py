"""What commits say of offsets and rows."""
