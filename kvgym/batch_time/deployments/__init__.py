"""Models on GPUs as they are served: from operator tables or data sheets, and the files that describe them."""
