"""The experiments of each paper, a package per paper; the commands are beside this folder."""
