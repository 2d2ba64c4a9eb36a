"""The stability paper, Section 5 and Appendix C."""
