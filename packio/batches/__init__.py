"""One batch: random draws, frames, images, masks and boxes, on the processor or a device."""
