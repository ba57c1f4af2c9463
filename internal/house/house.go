// Package house contains the tests of the house rules: which package may import which, which
// packages are pure, which heavy modules must not reach a user who embeds the library, and what the
// public API is (testdata/api.txt).
package house
