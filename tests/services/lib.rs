//! Only a package with a library or a program can have tests.
