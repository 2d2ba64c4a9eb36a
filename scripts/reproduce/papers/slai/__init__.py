"""The SLAI paper, Section 7 and Appendix F."""
