"""What packing does to images: resize them, encode them anew, convert their colours."""
