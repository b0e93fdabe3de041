"""The commands of ``crossturn``. All are imported to build the command line: nothing heavy at the top."""
