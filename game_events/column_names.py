"""When two names of columns are one: the rule of Spark and Delta, which the whole project follows."""


def folded(name: str) -> str:
    """A name in the form in which Spark and Delta compare names: two names are one column's if this is the same.

    Capital letters do not count, by Unicode's mapping to lower case (Java's `toLowerCase(Locale.ROOT)`): the micro sign and the
    Greek mu differ, so do sharp s and ss, final and other sigma, long and other s, which `str.casefold` makes one. The Kelvin
    sign is a k.
    """
    return name.lower()
