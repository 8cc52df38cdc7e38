"""What wraps a program's own objects: its model, its optimizer."""
