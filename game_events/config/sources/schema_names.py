"""What settings write for a schema that is no file. Imports nothing: workers have it, too."""

#: A subject's newest version, or with `@` a numbered one.
SUBJECT = "subject:"
#: The one that each record names: in a header, or as its key.
HEADER, KEY = "header:", "key"
