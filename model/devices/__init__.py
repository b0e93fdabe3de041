"""What is special to one device, behind one protocol."""
