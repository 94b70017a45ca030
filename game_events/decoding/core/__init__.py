"""What all formats share: wire format, column map, reasons for rejections."""
