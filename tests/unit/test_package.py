from importlib import metadata, resources

import batuta


def test_version_is_the_one_of_the_distribution():
    assert batuta.__version__ == metadata.version("batuta")


def test_package_ships_its_types():
    assert resources.files(batuta).joinpath("py.typed").is_file()
