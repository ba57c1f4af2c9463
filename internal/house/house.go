// Package house contains the tests of the house rules: which package may import which, which
// packages are pure, which heavy modules must not reach a user who embeds the library, what the
// public API is (testdata/api.txt), and which words names and documents may have.
package house
