// Package house contains the tests of the house rules: which package may import which, which
// packages are pure, and which heavy modules must not reach a user who embeds the library.
package house
